
// Without this the page is complete: titles give the tooltips. With it, a trial lights up in every plot and table.
(() => {
  const tip = document.getElementById("tip");
  const marks = new Map(), settings = new Map();
  let lit = null, pinned = false;

  for (const line of document.querySelectorAll("#parallel path[data-t] title")) {
    settings.set(line.parentNode.dataset.t, line.textContent.split("\n").slice(1).join("\n"));
  }
  for (const mark of document.querySelectorAll("[data-t]")) {
    const title = mark.querySelector(":scope > title");
    if (title) { mark.said = title.textContent.split("\n")[0]; title.remove(); }
    if (!marks.has(mark.dataset.t)) marks.set(mark.dataset.t, []);
    marks.get(mark.dataset.t).push(mark);
    if (mark.matches("path.line")) {  // a wider, unseen line is easier to point at
      const hit = mark.cloneNode();
      hit.setAttribute("class", "hit");
      hit.said = mark.said;
      mark.after(hit);
    }
  }

  for (const cell of document.querySelectorAll("[data-cell]")) {
    const title = cell.querySelector(":scope > title");
    cell.said = title.textContent;
    title.remove();
  }

  const light = (trial) => {
    if (trial === lit) return;
    for (const mark of marks.get(lit) ?? []) mark.classList.remove("on");
    for (const mark of marks.get(trial) ?? []) mark.classList.add("on");
    document.body.classList.toggle("lit", trial !== null);
    lit = trial;
  };
  const place = (event) => {
    const { innerWidth: width, innerHeight: height } = window;
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, width - tip.offsetWidth - 8)) + "px";
    tip.style.top = (event.clientY + 18 + tip.offsetHeight > height ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18) + "px";
  };

  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.("[data-t]");
    if (!pinned) light(mark ? mark.dataset.t : null);
    const cell = event.target.closest?.("[data-cell]");
    const words = cell ? [cell.said] : mark && mark.ownerSVGElement && [mark.said ?? "trial " + mark.dataset.t, settings.get(mark.dataset.t)];
    tip.hidden = !words;
    if (words) { tip.textContent = words.filter(Boolean).join("\n"); place(event); }
  });
  document.addEventListener("pointermove", (event) => { if (!tip.hidden) place(event); });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
      return;
    }
    const mark = event.target.closest("[data-t]");
    pinned = Boolean(mark) && !event.target.closest("summary") && !(pinned && mark.dataset.t === lit);
    light(mark ? mark.dataset.t : null);
  });
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
})();
