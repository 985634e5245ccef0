"""The rules of a retraining: those that ship, those of a user, and what is refused."""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.retraining.rules import FACTS, THENS, Fact, Rules, Verdict, read_rules
from onefold.vocabulary.errors import InputError

untimed = settings(deadline=None, max_examples=60)  # machines that run tests are busy
DOCS = Path(__file__).parents[2] / "docs" / "retraining-rules.md"
SHIPPED = read_rules()

ORDINARY: dict[str, Fact] = {  # a plan that no rule has anything to say about
    "batch_size": 32,
    "accumulation": 4,
    "effective_batch": 128,
    "segments": 1,
    "epochs": 100,
    "freeze_rate": 0.5,
    "lr": 1e-3,
    "optimizer": "adam",
    "layers": 12,
    "has_batch_norm": True,
    "samples": 5000,
    "updates": 500,
    "passes": 12.8,
    "update_s": 1.2,
    "window_s": 600.0,
    "fastest_update_share": 1.0,
    "memory_bytes": 400_000_000,
    "limit_bytes": 500_000_000,
}
ON_THE_WAY: dict[str, Fact] = ORDINARY | {  # and a retraining that goes well
    "elapsed_s": 100.0,
    "left_s": 500.0,
    "micro_window_s": 10.0,
    "loss": 0.5,
    "best_loss": 0.5,
    "first_loss": 1.0,
    "is_finite": True,
    "score": 0.9,
    "best_score": 0.9,
    "first_score": 0.8,
    "gain_per_s": 1e-3,
    "stalled": 0,
    "lowered": 0,
    "merit": 0.8,
    "best_other_merit": 0.8,
    "plans": 10,
    "predicted_bytes": 400_000_000,
    "measured_bytes": 390_000_000,
    "free_bytes": 2_000_000_000,
}


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rule(
    kind: str = "narrow", name: str = "mine", when: str = "lr > 1", then: str = "defer", say: str = "because"
) -> str:
    return f"[[{kind}]]\nname = '{name}'\nwhen = '''{when}'''\nthen = '{then}'\nsay = '{say}'\n"


def names(rules: Rules) -> tuple[list[str], list[str]]:
    return [rule.name for rule in rules.narrow], [rule.name for rule in rules.react]


def test_what_ships_asks_only_for_facts_that_are_known() -> None:
    assert ORDINARY.keys() == FACTS["narrow"].keys()
    assert ON_THE_WAY.keys() == FACTS["react"].keys()


def test_an_ordinary_plan_is_kept() -> None:
    assert SHIPPED.verdict(ORDINARY) == Verdict("keep", "", "")


NARROWING = [  # the rule, what it does, when it fires, and when it just does not
    ("enough updates", "refuse", {"updates": 19}, {"updates": 20}),
    ("enough updates", "refuse", {"updates": 19}, {"updates": 19, "effective_batch": 16}),
    ("batch within the data", "refuse", {"samples": 511}, {"samples": 512}),
    ("batch within the data", "refuse", {"samples": 20}, {"samples": 20, "effective_batch": 16}),
    (
        "far too slow",
        "refuse",
        {"fastest_update_share": 0.24, "passes": 2.9, "segments": 2},
        {"fastest_update_share": 0.24, "passes": 2.9, "segments": 1},
    ),
    (
        "far too slow",
        "refuse",
        {"fastest_update_share": 0.24, "passes": 2.9, "segments": 2},
        {"fastest_update_share": 0.24, "passes": 3.0, "segments": 2},
    ),
    (
        "far too slow",
        "refuse",
        {"fastest_update_share": 0.24, "passes": 2.9, "segments": 2},
        {"fastest_update_share": 0.24, "passes": 2.9, "segments": 2, "effective_batch": 16},
    ),
    (
        "slow",
        "defer",
        {"fastest_update_share": 0.49, "passes": 5, "segments": 2},
        {"fastest_update_share": 0.5, "passes": 5, "segments": 2},
    ),
    (
        "slow",
        "defer",
        {"fastest_update_share": 0.1, "passes": 5, "segments": 2},
        {"fastest_update_share": 0.1, "passes": 10, "segments": 2},
    ),
    (
        "slow",
        "defer",
        {"fastest_update_share": 0.1, "passes": 5, "segments": 2},
        {"fastest_update_share": 0.1, "passes": 5, "segments": 1},
    ),
    ("batch norm needs samples", "defer", {"batch_size": 4}, {"batch_size": 4, "has_batch_norm": False}),
    ("batch norm needs samples", "defer", {"batch_size": 7}, {"batch_size": 8}),
    (
        "frozen without need",
        "defer",
        {"freeze_rate": 0.95, "memory_bytes": 249_000_000},
        {"freeze_rate": 0.95, "memory_bytes": 250_000_000},
    ),
    ("frozen without need", "defer", {"freeze_rate": 1.0, "memory_bytes": 1}, {"freeze_rate": 0.9, "memory_bytes": 1}),
    (
        "small batches in a short window",
        "prefer",
        {"passes": 2.9, "effective_batch": 64},
        {"passes": 2.9, "effective_batch": 65},
    ),
    (
        "small batches in a short window",
        "prefer",
        {"passes": 2.9, "effective_batch": 16},
        {"passes": 3.0, "effective_batch": 16},
    ),
]


@pytest.mark.parametrize(("name", "then", "fires", "does_not"), NARROWING)
def test_a_shipped_rule_narrows_what_it_is_for(
    name: str, then: str, fires: dict[str, Fact], does_not: dict[str, Fact]
) -> None:
    verdict = SHIPPED.verdict(ORDINARY | fires)
    assert (verdict.rule, verdict.then) == (name, then)
    assert SHIPPED.verdict(ORDINARY | does_not).rule != name


REACTING = [
    ("loss cannot be held", "finish", {"is_finite": False, "loss": math.nan, "lowered": 6}, {"lowered": 6}),
    ("loss diverges", "go back", {"is_finite": False, "loss": math.nan}, {"loss": 0.9}),
    ("loss diverges", "go back", {"is_finite": False, "loss": math.inf, "lowered": 5}, {"lowered": 5}),
    ("loss diverges", "go back", {"loss": 2.1}, {"loss": 1.9}),
    ("loss diverges", "go back", {"loss": 2.1}, {"loss": -3.0, "best_loss": -4.0, "first_loss": -2.0}),
    ("memory shrinks", "replan", {"limit_bytes": 399_999_999}, {"limit_bytes": 400_000_000}),
    (
        "memory was underestimated",
        "replan",
        {"measured_bytes": 500_000_001},
        {"measured_bytes": math.nan},  # where the system does not tell
    ),
    ("window nearly over", "finish", {"left_s": 4.9}, {"left_s": 5.0}),
    ("gain stalls", "slow down", {"stalled": 6}, {"stalled": 5}),
    ("gain stalls", "slow down", {"stalled": 9, "lowered": 1}, {"stalled": 6, "lowered": 3}),
    ("nothing left to gain", "finish", {"stalled": 15, "lowered": 2}, {"stalled": 14, "lowered": 2}),
    ("another plan is better", "give way", {"best_other_merit": 0.89}, {"best_other_merit": 0.88}),
    (
        "another plan is better",
        "give way",
        {"merit": -1.0, "best_other_merit": -0.5},
        {"merit": -1.0, "best_other_merit": -1.05},
    ),
    ("another plan is better", "give way", {"best_other_merit": 2.0}, {"best_other_merit": 2.0, "plans": 1}),
]


@pytest.mark.parametrize(("name", "then", "fires", "does_not"), REACTING)
def test_a_shipped_rule_reacts_to_what_it_is_for(
    name: str, then: str, fires: dict[str, Fact], does_not: dict[str, Fact]
) -> None:
    reaction = SHIPPED.reaction(ON_THE_WAY | fires)
    assert reaction is not None
    assert (reaction.rule, reaction.then) == (name, then)
    assert reaction.said
    assert (SHIPPED.reaction(ON_THE_WAY | does_not) or Verdict("", "", "")).rule != name


def test_each_shipped_rule_has_been_seen_to_fire() -> None:
    assert set(names(SHIPPED)[0]) == {name for name, *_ in NARROWING}
    assert set(names(SHIPPED)[1]) == {name for name, *_ in REACTING}


def test_a_retraining_that_goes_well_goes_on() -> None:
    assert SHIPPED.reaction(ON_THE_WAY) is None


def test_facts_are_put_into_what_is_said() -> None:
    assert SHIPPED.verdict(ORDINARY | {"updates": 7}).said == "only 7 updates of 128 samples fit into the window"
    shrunk = SHIPPED.reaction(ON_THE_WAY | {"limit_bytes": 300_000_000})
    assert shrunk is not None
    assert shrunk.said == "the plan needs 400,000,000 bytes, and 300,000,000 are allowed now"


def test_whole_numbers_are_said_without_a_fraction(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, rule(when="true", say="{updates} of {effective_batch} at {lr}, {passes:.2g}")))
    assert rules.verdict(ORDINARY | {"updates": 500.0, "passes": 3.0}).said == "500 of 128 at 0.001, 3"


def test_a_refusal_comes_before_all_else_and_then_the_first_that_holds(tmp_path: Path) -> None:
    text = (
        rule(name="one", when="lr > 0", then="defer")
        + rule(name="two", when="lr > 0", then="prefer")
        + rule(name="three", when="lr > 0.5", then="refuse")
    )
    rules = read_rules(written(tmp_path, text))
    assert rules.verdict(ORDINARY).rule == "one"
    assert rules.verdict(ORDINARY | {"lr": 0.6}).rule == "three"
    assert rules.verdict(ORDINARY | {"lr": 0.6, "updates": 1}).rule == "three"  # those of the user are asked first


def test_a_rule_of_the_same_name_replaces_in_its_place(tmp_path: Path) -> None:
    text = rule("react", "window nearly over", "left_s < 60", "finish", "{left_s:.0f} s are not enough")
    rules = read_rules(str(written(tmp_path, text)))
    assert names(rules) == names(SHIPPED)
    assert rules.reaction(ON_THE_WAY | {"left_s": 59.0}) == Verdict(
        "finish", "window nearly over", "59 s are not enough"
    )
    assert rules.narrow == SHIPPED.narrow
    assert rules.react != SHIPPED.react


def test_a_name_of_one_kind_replaces_nothing_of_the_other(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, rule("narrow", "gain stalls")))
    assert names(rules) == (["gain stalls", *names(SHIPPED)[0]], names(SHIPPED)[1])


def test_other_rules_are_asked_before_the_shipped_ones_in_their_order(tmp_path: Path) -> None:
    text = rule("react", "b", then="finish") + rule("narrow", "n") + rule("react", "a", then="finish")
    rules = read_rules(written(tmp_path, text))
    assert names(rules) == (["n", *names(SHIPPED)[0]], ["b", "a", *names(SHIPPED)[1]])


def test_a_rule_can_be_switched_off(tmp_path: Path) -> None:
    text = '[[narrow]]\nname = "slow"\nthen = "off"\n' + rule("react", "gain stalls", then="off")
    rules = read_rules(written(tmp_path, text))
    assert "slow" not in names(rules)[0]
    assert "gain stalls" not in names(rules)[1]
    assert len(rules.narrow) == len(SHIPPED.narrow) - 1
    assert rules.verdict(ORDINARY | {"fastest_update_share": 0.4, "passes": 5, "segments": 2}).then == "keep"


def test_a_file_without_rules_changes_nothing(tmp_path: Path) -> None:
    assert read_rules(written(tmp_path, "# none yet\n")) == SHIPPED


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("optimizer == 'adam'", True),
        ("optimizer != 'adam'", False),
        ("optimizer in ['sgd', 'adam'] and batch_size in [16, 32]", True),
        ("optimizer not in ['sgd', 'adam']", False),
        ("'ad' in optimizer", True),
        ("has_batch_norm", True),
        ("has_batch_norm == false", False),
        ("not has_batch_norm or -lr < 0", True),
        ("(batch_size + 4) * 2 ** 3 / 4 - 1 == 71 and batch_size // 5 == 6 and batch_size % 5 == 2", True),
        ("lr == 1e-3 and lr < inf", True),
        ("lr > 0\n  and lr < 1  # as always", True),
        ("true", True),
    ],
)
def test_the_language_of_conditions(tmp_path: Path, when: str, holds: bool) -> None:
    verdict = read_rules(written(tmp_path, rule(when=when))).verdict(ORDINARY)
    assert (verdict.rule == "mine") == holds


@pytest.mark.parametrize("when", ["lr / freeze_rate > 0", "1 / freeze_rate > 0 or true", "10 ** window_s > 1"])
def test_a_rule_that_cannot_be_worked_out_does_not_hold(tmp_path: Path, when: str) -> None:
    rules = read_rules(written(tmp_path, rule(when=when)))
    assert rules.verdict(ORDINARY | {"freeze_rate": 0, "window_s": 1e9}).then == "keep"


@pytest.mark.parametrize("when", ["loss < 1", "loss >= 1", "loss == 1", "0 * loss == 0"])
def test_no_comparison_with_what_is_not_a_number_holds(tmp_path: Path, when: str) -> None:
    rules = read_rules(written(tmp_path, rule("react", when=f"{when} or elapsed_s > 1000", then="finish")))
    assert rules.reaction(ON_THE_WAY | {"loss": math.nan}) is None
    reaction = rules.reaction(ON_THE_WAY | {"loss": math.nan, "elapsed_s": 1001})  # the rest of the rule still counts
    assert reaction is not None
    assert reaction.rule == "mine"


def test_a_fact_that_is_not_given_is_a_mistake_of_the_program() -> None:
    with pytest.raises(KeyError, match="lr"):
        SHIPPED.verdict({name: fact for name, fact in ORDINARY.items() if name != "lr"})


def test_rules_travel_to_another_process() -> None:
    there = pickle.loads(pickle.dumps(SHIPPED))
    assert there == SHIPPED
    assert there.verdict(ORDINARY | {"updates": 1}).rule == "enough updates"


FINE = rule()  # five lines


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (f"{FINE}[[narow]]\n", 6, "no rules of the kind 'narow'; did you mean 'narrow'"),
        (f"\n\n{FINE}[more]\nx = 1\n", 8, "no rules of the kind 'more'; known: narrow, react"),
        ("[narrow]\nname = 'x'\n", 1, "'narrow' holds no rules; begin each with [[narrow]]"),
        ("# a\nreact = 3\n", 2, "'react' holds no rules"),
        (f"{FINE}[[react]]\nname = 'x'\n", 6, "lacks when, then, say; every rule has name, when, then, say"),
        ("[[narrow]]\nthen = 'off'\n", 1, "lacks name"),
        (f"{FINE}because = 'x'\n", 6, "a rule has no 'because'"),
        (FINE.replace("say", "says"), 5, "a rule has no 'says'; did you mean 'say'"),
        (FINE.replace("'defer'", "3"), 4, "then must be a text in quotes, but got 3"),
        (rule(name=" "), 2, "name must be a text in quotes, but got ' '"),
        (FINE + rule(when="lr > 2"), 7, "another narrow rule 'mine' above"),
        (rule(then="refuze"), 4, "'mine' cannot end in 'refuze'; did you mean 'refuse'"),
        (rule(then="finish"), 4, "'mine' cannot end in 'finish'; known: defer, off, prefer, refuse"),
        (rule(name="slw", then="off"), 2, "no narrow rule 'slw' ships that could be switched off; did you mean 'slow'"),
        (rule("react", name="slow", then="off"), 2, "no react rule 'slow' ships that could be switched off"),
        (rule(when="updates <"), 3, "no expression: it cannot be read to its end; it reads like: updates < 20"),
        (rule(when="16 <= updates <= 64"), 3, "no expression: it cannot be read from '<= 64' on"),
        (rule(when="lr = 3"), 3, "cannot be read from '= 3' on"),
        (rule(when="lr > 1 else 2"), 3, "no expression"),
        (rule(when="updatess < 20"), 3, "the unknown fact 'updatess'; did you mean 'updates'"),
        (rule(when="loss > 1"), 3, "the unknown fact 'loss'; only react rules know it"),
        (rule(when="optimizer > 3"), 3, "different kinds; numbers go with numbers"),
        (rule(when="optimizer == 3"), 3, "of different kinds"),
        (rule(when="optimizer == adam"), 3, "the unknown fact 'adam'"),
        (rule(when="has_batch_norm != lr"), 3, "(has_batch_norm is true or false, lr is a number)"),
        (rule(when="optimizer * 2 > 1"), 3, "texts in quotes with texts (optimizer is a text)"),
        (rule(when="-optimizer == optimizer"), 3, "of different kinds"),
        (rule(when='batch_size in [8, "x"]'), 3, "of different kinds"),
        (rule(when="lr == null"), 3, "uses more than facts"),
        (rule(when="optimizer =~ 'a.*'"), 3, "uses more than facts"),
        (rule(when="$random() > 0.5"), 3, "uses more than facts"),
        (rule(when="$e > lr"), 3, "uses more than facts"),
        (rule(when="[lr] == [lr]"), 3, "uses more than facts"),
        (rule(when="optimizer.length > 3"), 3, "uses more than facts"),
        (rule(when="optimizer.size > 3"), 3, "cannot be worked out: unknown attribute: 'size'"),
        (rule(when="batch_size == 8 or 16"), 3, "joins by and, or, not what is not true or false"),
        (rule(when="not updates"), 3, "joins by and, or, not what is not true or false"),
        (rule(when="updates + 1"), 3, "the `when` of 'mine' is not true or false; compare it with something"),
        (rule(when="optimizer"), 3, "is not true or false"),
        (rule(when="1 / 0 > lr"), 3, "cannot be worked out: arithmetic error: division by zero"),
        (rule(when="inf - inf > lr"), 3, "cannot be worked out"),
        (rule(when="not " * 3000 + "has_batch_norm"), 3, "is nested too deeply"),
        (rule(when="\n\n\nlrr > 1"), 3, "the unknown fact 'lrr'; did you mean 'lr'"),
        (rule(when="\n[[narrow]]\n") + FINE, 3, "the unknown fact 'narrow'"),
        (rule(when="\n[[narrow]]\n", then="of") + FINE, 6, "cannot end in 'of'; did you mean 'off'"),
        (rule(say="{left} s"), 5, "what 'mine' says names the unknown fact 'left'"),
        (rule(say="{} s"), 5, "names the unknown fact ''"),
        (rule(say="{lr.real}"), 5, "names the unknown fact 'lr.real'"),
        (rule(say="{loss}"), 5, "names the unknown fact 'loss'; only react rules know it"),
        (rule(say="{lr"), 5, "has a brace without its other"),
        (rule(say="lr}"), 5, "has a brace without its other"),
        (rule(say="{lr:d}"), 5, "cannot show lr, a number, with ':d'; write {lr}"),
        (rule(say="{updates:.3}"), 5, "cannot show updates, a number, with ':.3'"),
        (rule(say="{optimizer:.1f}"), 5, "cannot show optimizer, a text, with ':.1f'"),
        (rule(say="{lr:{updates}}"), 5, "cannot show lr, a number, with ':{updates}'"),
        (rule(say="{lr!r}"), 5, "cannot show lr, a number, with '!r'"),
        (f"narrow = [\n {{ name = 'x' }},\n]\n{rule('react', when='lrr')}", 1, "lacks when, then, say"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as told:
        read_rules(path)
    assert str(told.value).startswith(f"{path}, line {line}: ")
    assert complaint in str(told.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{FINE}[[narrow]]\nname = x\n", "(at line 7, column 8)"),
        (f"{FINE}say = 'again'\n", "(at line 6, column 14)"),
        ("[[narrow", "(at end of document)"),
    ],
)
def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape("mine.toml is not TOML: ")) as told:
        read_rules(written(tmp_path, text))
    assert complaint in str(told.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the rules in .*none\.toml cannot be read"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("# größer".encode("latin-1"))
    with pytest.raises(InputError, match=r"the rules in .*latin\.toml cannot be read"):
        read_rules(tmp_path / "latin.toml")


numbers = st.floats() | st.integers(-(10**15), 10**15)
drawn = {float: numbers, str: st.text(), bool: st.booleans()}


@untimed
@given(st.fixed_dictionaries({name: drawn[kind] for name, kind in FACTS["react"].items()}))
def test_whatever_the_facts_the_rules_decide(facts: dict[str, Fact]) -> None:
    assert SHIPPED.verdict(facts).then in (*THENS["narrow"], "keep")
    reaction = SHIPPED.reaction(facts)
    assert reaction is None or reaction.then in THENS["react"]


@untimed
@given(
    st.fixed_dictionaries({name: drawn[kind] for name, kind in FACTS["narrow"].items()}),
    st.floats(1, 16),
)
def test_a_plan_of_small_batches_is_never_refused(facts: dict[str, Fact], effective_batch: float) -> None:
    assert SHIPPED.verdict(facts | {"effective_batch": effective_batch}).then != "refuse"


WORDS = (
    "lr updates optimizer has_batch_norm 1 2.5 inf nan 'adam' true null $now $abs [ ] ( ) , { } : ? ?? . & | ^ << "
    "< <= > >= == != =~ !~ + - * / // % ** and or not in for if b'x' d'2020-01-01' t'P1D' lr.floor"
)


@untimed
@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=9).map(" ".join))
def test_whatever_stands_in_a_condition_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, when: str) -> None:
    path = written(tmp_path_factory.mktemp("rules"), rule(when=when))
    told = f"{path}, line 3: "
    try:
        rules = read_rules(path)
    except InputError as error:
        told, rules = str(error), SHIPPED
    assert told.startswith(f"{path}, line 3: ")
    assert rules.verdict(ORDINARY).then in ("keep", "defer")


def test_the_documents_tell_all_facts_and_actions() -> None:
    text = DOCS.read_text()
    _, _, below = text.partition("## Facts")
    of_plans, _, on_the_way = below.partition("### On the way")
    told = [re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in (of_plans, on_the_way)]
    assert set(told[0]) == FACTS["narrow"].keys()
    assert set(told[1]) == FACTS["react"].keys() - FACTS["narrow"].keys()
    for then in (*THENS["narrow"], *THENS["react"]):
        assert f'| `"{then}"` |' in text


@pytest.mark.parametrize("number", range(3))
def test_the_rules_in_the_documents_can_be_read(tmp_path: Path, number: int) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    assert read_rules(written(tmp_path, blocks[number])) != SHIPPED
