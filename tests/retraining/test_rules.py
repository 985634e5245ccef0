"""Shipped rules, rules of a user, and errors in rule files."""

from __future__ import annotations

import math
import os
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.retraining.rule_file import read_rules
from onefold.retraining.rules import ACTIONS, FACTS, Fact, Rules, Verdict
from onefold.vocabulary.errors import InputError

few_examples = settings(deadline=None, max_examples=30)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "retraining-rules.md"
SHIPPED = read_rules()

ORDINARY: dict[str, Fact] = {  # a plan that no rule applies to
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
PROGRESSING: dict[str, Fact] = ORDINARY | {  # and a retraining that no rule applies to
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


def test_the_examples_have_all_facts() -> None:
    assert ORDINARY.keys() == FACTS["narrow"].keys()
    assert PROGRESSING.keys() == FACTS["react"].keys()


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
def test_a_shipped_narrow_rule_holds_when_it_should(
    name: str, then: str, fires: dict[str, Fact], does_not: dict[str, Fact]
) -> None:
    verdict = SHIPPED.verdict(ORDINARY | fires)
    assert (verdict.rule, verdict.then) == (name, then)
    assert SHIPPED.verdict(ORDINARY | does_not).rule != name


REACTING = [
    ("loss cannot be held", "finish", {"is_finite": False, "loss": math.nan, "lowered": 6}, {"lowered": 6}),
    ("loss diverges", "restore best", {"is_finite": False, "loss": math.nan}, {"loss": 0.9}),
    ("loss diverges", "restore best", {"is_finite": False, "loss": math.inf, "lowered": 5}, {"lowered": 5}),
    ("loss diverges", "restore best", {"loss": 2.1}, {"loss": 1.9}),
    ("loss diverges", "restore best", {"loss": 2.1}, {"loss": -3.0, "best_loss": -4.0, "first_loss": -2.0}),
    ("memory shrinks", "replan", {"limit_bytes": 399_999_999}, {"limit_bytes": 400_000_000}),
    (
        "memory was underestimated",
        "replan",
        {"measured_bytes": 500_000_001},
        {"measured_bytes": math.nan},  # if the system does not report it
    ),
    ("window nearly over", "finish", {"left_s": 4.9}, {"left_s": 5.0}),
    ("gain stalls", "lower lr", {"stalled": 6}, {"stalled": 5}),
    ("gain stalls", "lower lr", {"stalled": 12, "lowered": 1}, {"stalled": 11, "lowered": 1}),
    ("gain stalls", "lower lr", {"stalled": 17, "lowered": 1}, {"stalled": 17, "lowered": 3}),
    ("nothing left to gain", "finish", {"stalled": 18, "lowered": 2}, {"stalled": 17, "lowered": 2}),
    ("another plan is better", "switch plan", {"best_other_merit": 0.89}, {"best_other_merit": 0.88}),
    (
        "another plan is better",
        "switch plan",
        {"merit": -1.0, "best_other_merit": -0.5},
        {"merit": -1.0, "best_other_merit": -1.05},
    ),
    ("another plan is better", "switch plan", {"best_other_merit": 2.0}, {"best_other_merit": 2.0, "plans": 1}),
]


@pytest.mark.parametrize(("name", "then", "fires", "does_not"), REACTING)
def test_a_shipped_react_rule_holds_when_it_should(
    name: str, then: str, fires: dict[str, Fact], does_not: dict[str, Fact]
) -> None:
    reaction = SHIPPED.reaction(PROGRESSING | fires)
    assert reaction is not None
    assert (reaction.rule, reaction.then) == (name, then)
    assert reaction.said
    assert (SHIPPED.reaction(PROGRESSING | does_not) or Verdict("", "", "")).rule != name


def test_every_shipped_rule_is_tested() -> None:
    assert set(names(SHIPPED)[0]) == {name for name, *_ in NARROWING}
    assert set(names(SHIPPED)[1]) == {name for name, *_ in REACTING}


def test_no_reaction_to_a_retraining_that_goes_well() -> None:
    assert SHIPPED.reaction(PROGRESSING) is None


def test_facts_are_filled_into_the_message() -> None:
    assert SHIPPED.verdict(ORDINARY | {"updates": 7}).said == "only 7 updates of 128 samples fit into the window"
    shrunk = SHIPPED.reaction(PROGRESSING | {"limit_bytes": 300_000_000})
    assert shrunk is not None
    assert shrunk.said == "the plan needs 400,000,000 bytes, but the limit is 300,000,000 now"


def test_integers_are_formatted_without_a_fraction(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, rule(when="true", say="{updates} of {effective_batch} at {lr}, {passes:.2g}")))
    assert rules.verdict(ORDINARY | {"updates": 500.0, "passes": 3.0}).said == "500 of 128 at 0.001, 3"


def test_a_refusal_precedes_the_first_rule_that_holds(tmp_path: Path) -> None:
    text = (
        rule(name="one", when="lr > 0", then="defer")
        + rule(name="two", when="lr > 0", then="prefer")
        + rule(name="three", when="lr > 0.5", then="refuse")
    )
    rules = read_rules(written(tmp_path, text))
    assert rules.verdict(ORDINARY).rule == "one"
    assert rules.verdict(ORDINARY | {"lr": 0.6}).rule == "three"
    assert rules.verdict(ORDINARY | {"lr": 0.6, "updates": 1}).rule == "three"  # rules of the user come first


def test_a_rule_of_the_same_name_replaces_the_shipped_one(tmp_path: Path) -> None:
    text = rule("react", "window nearly over", "left_s < 60", "finish", "{left_s:.0f} s are not enough")
    rules = read_rules(str(written(tmp_path, text)))
    assert names(rules) == names(SHIPPED)
    assert rules.reaction(PROGRESSING | {"left_s": 59.0}) == Verdict(
        "finish", "window nearly over", "59 s are not enough"
    )
    assert rules.narrow == SHIPPED.narrow
    assert rules.react != SHIPPED.react


def test_names_of_different_kinds_are_independent(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, rule("narrow", "gain stalls")))
    assert names(rules) == (["gain stalls", *names(SHIPPED)[0]], names(SHIPPED)[1])


def test_other_rules_precede_the_shipped_ones(tmp_path: Path) -> None:
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
def test_conditions(tmp_path: Path, when: str, holds: bool) -> None:
    verdict = read_rules(written(tmp_path, rule(when=when))).verdict(ORDINARY)
    assert (verdict.rule == "mine") == holds


@pytest.mark.parametrize("when", ["lr / freeze_rate > 0", "1 / freeze_rate > 0 or true", "10 ** window_s > 1"])
def test_a_rule_that_cannot_be_evaluated_does_not_hold(tmp_path: Path, when: str) -> None:
    rules = read_rules(written(tmp_path, rule(when=when)))
    assert rules.verdict(ORDINARY | {"freeze_rate": 0, "window_s": 1e9}).then == "keep"


@pytest.mark.parametrize("when", ["loss < 1", "loss >= 1", "loss == 1", "0 * loss == 0"])
def test_comparisons_with_nan_are_false(tmp_path: Path, when: str) -> None:
    rules = read_rules(written(tmp_path, rule("react", when=f"{when} or elapsed_s > 1000", then="finish")))
    assert rules.reaction(PROGRESSING | {"loss": math.nan}) is None
    reaction = rules.reaction(PROGRESSING | {"loss": math.nan, "elapsed_s": 1001})  # the rest of the rule still counts
    assert reaction is not None
    assert reaction.rule == "mine"


def test_a_missing_fact_raises() -> None:
    with pytest.raises(KeyError, match="lr"):
        SHIPPED.verdict({name: fact for name, fact in ORDINARY.items() if name != "lr"})


def test_rules_can_be_pickled() -> None:
    there = pickle.loads(pickle.dumps(SHIPPED))
    assert there == SHIPPED
    assert there.verdict(ORDINARY | {"updates": 1}).rule == "enough updates"


FINE = rule()  # five lines


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (f"{FINE}[[narow]]\n", 6, "unknown kind of rule 'narow'; did you mean 'narrow'"),
        (f"\n\n{FINE}[more]\nx = 1\n", 8, "unknown kind of rule 'more'; known: narrow, react"),
        ("[narrow]\nname = 'x'\n", 1, "'narrow' is not a list of rules; start each with [[narrow]]"),
        ("# a\nreact = 3\n", 2, "'react' is not a list of rules"),
        (f"{FINE}[[react]]\nname = 'x'\n", 6, "has no when, then, say; every rule needs name, when, then, say"),
        ("[[narrow]]\nthen = 'off'\n", 1, "has no name"),
        (f"{FINE}because = 'x'\n", 6, "unknown key 'because'"),
        (FINE.replace("say", "says"), 5, "unknown key 'says'; did you mean 'say'"),
        (FINE.replace("'defer'", "3"), 4, "then must be a non-empty string in quotes, got 3"),
        (rule(name=" "), 2, "name must be a non-empty string in quotes, got ' '"),
        (FINE + rule(when="lr > 2"), 7, "duplicate narrow rule 'mine'"),
        (rule(then="refuze"), 4, "unknown action 'refuze' of the narrow rule 'mine'; did you mean 'refuse'"),
        (
            rule(then="finish"),
            4,
            "'finish' of the narrow rule 'mine'; known: defer, off, prefer, refuse",
        ),
        (
            rule(name="slw", then="off"),
            2,
            "no narrow rule of that name ships; did you mean 'slow'",
        ),
        (rule("react", name="slow", then="off"), 2, "cannot switch off 'slow': no react rule of that name ships"),
        (rule(when="updates <"), 3, "has a syntax error at its end; an example is: updates < 20"),
        (rule(when="16 <= updates <= 64"), 3, "has a syntax error at '<= 64'"),
        (rule(when="lr = 3"), 3, "a syntax error at '= 3'"),
        (rule(when="lr > 1 else 2"), 3, "syntax error"),
        (rule(when="updatess < 20"), 3, "the unknown fact 'updatess'; did you mean 'updates'"),
        (rule(when="loss > 1"), 3, "the unknown fact 'loss'; it is available to react rules only"),
        (rule(when="optimizer > 3"), 3, "mixes types; compare numbers with numbers"),
        (rule(when="optimizer == 3"), 3, "mixes types"),
        (rule(when="optimizer == adam"), 3, "the unknown fact 'adam'"),
        (rule(when="has_batch_norm != lr"), 3, "(has_batch_norm is a boolean, lr is a number)"),
        (rule(when="optimizer * 2 > 1"), 3, "quoted strings with strings (optimizer is a string)"),
        (rule(when="-optimizer == optimizer"), 3, "mixes types"),
        (rule(when='batch_size in [8, "x"]'), 3, "mixes types"),
        (rule(when="lr == null"), 3, "may only use facts"),
        (rule(when="optimizer =~ 'a.*'"), 3, "may only use facts"),
        (rule(when="$random() > 0.5"), 3, "may only use facts"),
        (rule(when="$e > lr"), 3, "may only use facts"),
        (rule(when="[lr] == [lr]"), 3, "may only use facts"),
        (rule(when="optimizer.length > 3"), 3, "may only use facts"),
        (rule(when="optimizer.size > 3"), 3, "cannot be evaluated: unknown attribute: 'size'"),
        (rule(when="batch_size == 8 or 16"), 3, "joins values that are not boolean"),
        (rule(when="not updates"), 3, "joins values that are not boolean"),
        (rule(when="updates + 1"), 3, "the `when` of 'mine' is not boolean; compare it with something"),
        (rule(when="optimizer"), 3, "is not boolean"),
        (rule(when="1 / 0 > lr"), 3, "cannot be evaluated: arithmetic error: division by zero"),
        (rule(when="inf - inf > lr"), 3, "cannot be evaluated"),
        (rule(when="not " * 3000 + "has_batch_norm"), 3, "is nested too deeply"),
        (rule(when="\n\n\nlrr > 1"), 3, "the unknown fact 'lrr'; did you mean 'lr'"),
        (rule(when="\n[[narrow]]\n") + FINE, 3, "the unknown fact 'narrow'"),
        (
            rule(when="\n[[narrow]]\n", then="of") + FINE,
            6,
            "unknown action 'of'",
        ),
        (rule(say="{left} s"), 5, "the `say` of 'mine' refers to the unknown fact 'left'"),
        (rule(say="{} s"), 5, "refers to the unknown fact ''"),
        (rule(say="{lr.real}"), 5, "refers to the unknown fact 'lr.real'"),
        (rule(say="{loss}"), 5, "refers to the unknown fact 'loss'; it is available to react rules only"),
        (rule(say="{lr"), 5, "has an unmatched brace"),
        (rule(say="lr}"), 5, "has an unmatched brace"),
        (rule(say="{lr:d}"), 5, "cannot format lr, a number, with ':d'; write {lr}"),
        (rule(say="{updates:.3}"), 5, "cannot format updates, a number, with ':.3'"),
        (rule(say="{optimizer:.1f}"), 5, "cannot format optimizer, a string, with ':.1f'"),
        (rule(say="{lr:{updates}}"), 5, "cannot format lr, a number, with ':{updates}'"),
        (rule(say="{lr!r}"), 5, "cannot format lr, a number, with '!r'"),
        (f"narrow = [\n {{ name = 'x' }},\n]\n{rule('react', when='lrr')}", 1, "has no when, then, say"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error_info:
        read_rules(path)
    assert str(error_info.value).startswith(f"{path}, line {line}: ")
    assert problem in str(error_info.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{FINE}[[narrow]]\nname = x\n", "(at line 7, column 8)"),
        (f"{FINE}say = 'again'\n", "(at line 6, column 14)"),
        ("[[narrow", "(at end of document)"),
    ],
)
def test_invalid_toml_is_rejected_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape("mine.toml is not valid TOML: ")) as error_info:
        read_rules(written(tmp_path, text))
    assert problem in str(error_info.value)


def test_a_message_that_would_fill_the_memory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[[react]]\nname = "a"\nwhen = "elapsed_s > 0"\nthen = "finish"\nsay = "{elapsed_s:2000000000.0f}"\n'
    )
    with pytest.raises(InputError, match=r"line 5: the `say` of 'a' cannot format elapsed_s"):
        read_rules(tmp_path / "mine.toml")


def test_a_pipe_in_place_of_rules_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(InputError, match="not a regular file"):
        read_rules(tmp_path / "mine.toml")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the rules in .*none\.toml"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("# größer".encode("latin-1"))
    with pytest.raises(InputError, match=r"cannot read the rules in .*latin\.toml"):
        read_rules(tmp_path / "latin.toml")


numbers = st.floats() | st.integers(-(10**15), 10**15)
drawn = {float: numbers, str: st.text(), bool: st.booleans()}


@few_examples
@given(st.fixed_dictionaries({name: drawn[kind] for name, kind in FACTS["react"].items()}))
def test_rules_decide_for_any_facts(facts: dict[str, Fact]) -> None:
    assert SHIPPED.verdict(facts).then in (*ACTIONS["narrow"], "keep")
    reaction = SHIPPED.reaction(facts)
    assert reaction is None or reaction.then in ACTIONS["react"]


@few_examples
@given(
    st.fixed_dictionaries({name: drawn[kind] for name, kind in FACTS["narrow"].items()}),
    st.floats(1, 16),
)
def test_a_small_effective_batch_is_never_refused(facts: dict[str, Fact], effective_batch: float) -> None:
    assert SHIPPED.verdict(facts | {"effective_batch": effective_batch}).then != "refuse"


WORDS = (
    "lr updates optimizer has_batch_norm 1 2.5 inf nan 'adam' true null $now $abs [ ] ( ) , { } : ? ?? . & | ^ << "
    "< <= > >= == != =~ !~ + - * / // % ** and or not in for if b'x' d'2020-01-01' t'P1D' lr.floor"
)


@few_examples
@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=9).map(" ".join))
def test_any_condition_is_parsed_or_rejected(tmp_path_factory: pytest.TempPathFactory, when: str) -> None:
    path = written(tmp_path_factory.mktemp("rules"), rule(when=when))
    expected = f"{path}, line 3: "
    try:
        rules = read_rules(path)
    except InputError as error:
        expected, rules = str(error), SHIPPED
    assert expected.startswith(f"{path}, line 3: ")
    assert rules.verdict(ORDINARY).then in ("keep", "defer")


def test_the_documentation_lists_all_facts_and_actions() -> None:
    text = DOCS.read_text()
    _, _, below = text.partition("## Facts")
    plan_section, _, progress_section = below.partition("### Progress of the retraining")
    expected = [re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in (plan_section, progress_section)]
    assert set(expected[0]) == FACTS["narrow"].keys()
    assert set(expected[1]) == FACTS["react"].keys() - FACTS["narrow"].keys()
    for then in (*ACTIONS["narrow"], *ACTIONS["react"]):
        assert f'| `"{then}"` |' in text


@pytest.mark.parametrize("number", range(3))
def test_the_rules_in_the_documentation_are_valid(tmp_path: Path, number: int) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    assert read_rules(written(tmp_path, blocks[number])) != SHIPPED
