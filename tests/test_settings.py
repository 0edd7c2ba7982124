"""What SET takes: values in their ranges, prices below the role's limit; nothing that weakens the guarantee."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import InvalidParameter, UndefinedObject
from dpsql.gateway.settings import REPORTED, ErrorTarget, Reuse, Settings, SettingsSnapshot
from dpsql.policy import Policy, load_policy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def policy(clinic_policy: Path) -> Policy:
    return load_policy(clinic_policy)


@pytest.fixture
def settings(policy: Policy) -> Settings:
    return Settings(policy, policy.roles[0])


ACCEPTED = [
    ("dpsql.epsilon", "0.2", "0.2"),
    ("dpsql.epsilon", " 0.20 ", "0.2"),
    ("dpsql.epsilon", "2e-1", "0.2"),
    ("dpsql.epsilon", "1", "1"),
    ("dpsql.epsilon", "0.001", "0.001"),
    ("dpsql.delta", "0", "0"),
    ("dpsql.delta", "1e-9", "0.000000001"),
    ("dpsql.delta", "1E-30", "0.000000000000000000000000000001"),
    ("dpsql.delta", "0.001", "0.001"),
    ("dpsql.mechanism", "laplace", "laplace"),
    ("dpsql.mechanism", "GAUSSIAN", "gaussian"),
    ("dpsql.target_error", "5 %", "5 %"),
    ("dpsql.target_error", " 5%", "5 %"),
    ("dpsql.target_error", "0.50 %", "0.5 %"),
    ("dpsql.target_error", "100%", "100 %"),
    ("dpsql.target_error", "50", "50"),
    ("dpsql.target_error", "2.5e3", "2500"),
    ("dpsql.target_error", "1e-30", "0.000000000000000000000000000001"),
    ("dpsql.target_error", "OFF", "off"),
    ("dpsql.intervals", "on", "on"),
    ("dpsql.intervals", "TRUE", "on"),
    ("dpsql.intervals", "yes", "on"),
    ("dpsql.intervals", "1", "on"),
    ("dpsql.reuse", "off", "off"),
    ("dpsql.reuse", "f", "off"),
    ("dpsql.notices", "No", "off"),
    ("dpsql.max_groups", "4", "4"),
    ("dpsql.max_groups", " 004 ", "4"),
    ("dpsql.max_rows", "999999999", "999999999"),
    ("dpsql.max_rows_per_group", "1", "1"),
    ("DateStyle", "iso", "ISO, MDY"),
    ("DateStyle", "ISO,DMY", "ISO, DMY"),
    ("DateStyle", "iso, ymd", "ISO, YMD"),
    ("client_encoding", "utf8", "UTF8"),
    ("client_encoding", "'UTF-8'", "UTF8"),
    ("client_encoding", "unicode", "UTF8"),
    ("standard_conforming_strings", "ON", "on"),
    ("TimeZone", "UTC", "UTC"),
    ("TimeZone", "europe/berlin", "Europe/Berlin"),
    ("TimeZone", "<+05:30>-05:30", "<+05:30>-05:30"),
    ("TimeZone", "-7", "<-07>+07"),
    ("TimeZone", "5.5", "<+05:30>-05:30"),
    ("TimeZone", "INTERVAL '+00:00' HOUR TO MINUTE", "<+00>-00"),
    ("TimeZone", "interval '-3:30:10'", "<-03:30:10>+03:30:10"),
    ("TimeZone", "INTERVAL '-3:30' HOUR", "<-03>+03"),
    ("TimeZone", "INTERVAL '2' HOUR", "<+02>-02"),
    ("synchronize_seqscans", "off", "off"),
    ("application_name", "psql", "psql"),
    ("search_path", "clinic", "clinic"),
    ("statement_timeout", "5s", "5s"),
    ("extra_float_digits", "3", "3"),
]

REFUSED = [
    ("TimeZone", "INTERVAL '1 month'"),
    ("TimeZone", "INTERVAL '1 day'"),
    ("TimeZone", "INTERVAL 'soon'"),
    ("TimeZone", "24"),
    ("TimeZone", "<+05:30>+05:30"),
    ("TimeZone", "<+25>-25"),
    ("dpsql.epsilon", "0"),
    ("dpsql.epsilon", "-1"),
    ("dpsql.epsilon", "1.0001"),
    ("dpsql.epsilon", "0.0009"),
    ("dpsql.epsilon", "inf"),
    ("dpsql.epsilon", "nan"),
    ("dpsql.epsilon", "sNaN"),
    ("dpsql.epsilon", "a lot"),
    ("dpsql.epsilon", ""),
    ("dpsql.epsilon", "1e999999999"),
    ("dpsql.epsilon", "0." + "1" * 50),
    ("dpsql.delta", "-1e-9"),
    ("dpsql.delta", "0.01"),
    ("dpsql.delta", "1e-31"),
    ("dpsql.delta", "x"),
    ("dpsql.mechanism", "none"),
    ("dpsql.mechanism", ""),
    ("dpsql.target_error", "-1"),
    ("dpsql.target_error", "0"),
    ("dpsql.target_error", "0 %"),
    ("dpsql.target_error", "NaN"),
    ("dpsql.target_error", "inf %"),
    ("dpsql.target_error", "1e999"),
    ("dpsql.target_error", "1e31"),
    ("dpsql.target_error", "1e-31"),
    ("dpsql.target_error", "1e-31 %"),
    ("dpsql.target_error", "200 %"),
    ("dpsql.target_error", "100.1 %"),
    ("dpsql.target_error", "%"),
    ("dpsql.target_error", ""),
    ("dpsql.target_error", "5 percent"),
    ("dpsql.target_error", "5 % 5"),
    ("dpsql.target_error", "exact"),
    ("dpsql.intervals", "perhaps"),
    ("dpsql.reuse", ""),
    ("dpsql.max_groups", "0"),
    ("dpsql.max_groups", "-1"),
    ("dpsql.max_groups", "1.5"),
    ("dpsql.max_groups", "10000000000"),
    ("dpsql.max_groups", "9" * 11),
    ("dpsql.max_rows", "many"),
    ("dpsql.max_rows_per_group", "²"),
    ("DateStyle", "Klingon"),
    ("extra_float_digits", "4"),
    ("IntervalStyle", "verbose"),
    ("bytea_output", "base64"),
    ("TimeZone", "Mars/Olympus"),
    ("client_encoding", "LATIN1"),
    ("standard_conforming_strings", "off"),
    ("server_version", "16"),
    ("server_encoding", "UTF8"),
    ("transaction_read_only", "off"),
    ("TimeZone", "Mars/Olympus"),
    ("application_name", "x" * 10_001),
    ("application_name", "a\x00b"),
]


@pytest.mark.parametrize(("name", "value", "shown"), ACCEPTED)
def test_accepted(settings: Settings, name: str, value: str, shown: str) -> None:
    settings.set(name.upper(), value)
    assert settings.show(name.lower()) == shown


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused(settings: Settings, name: str, value: str) -> None:
    before = settings.show(name)
    with pytest.raises(InvalidParameter) as caught:
        settings.set(name, value)
    assert len(caught.value.message) < 300
    assert settings.show(name) == before


def test_what_is_not_there(settings: Settings) -> None:
    for name in ("dpsql.clamping", "dpsql.noise", "dpsql.seed", "", "dpsql"):
        with pytest.raises(UndefinedObject) as caught:
            settings.show(name)
        assert caught.value.hint == "Write: SHOW ALL"
        with pytest.raises(UndefinedObject):
            settings.set(name, "1")


def test_defaults_are_the_roles(settings: Settings) -> None:
    query = settings.query(NOW, "ana")
    assert query.epsilon == Fraction(1, 10)
    assert query.delta == Fraction(1, 10**9)
    assert query.mechanism == "auto"
    assert query.now == NOW
    assert query.intervals is False
    assert (query.max_rows, query.max_groups, query.max_rows_per_group) == (None, None, None)
    assert settings.reuse is Reuse.DERIVED
    assert settings.is_on("dpsql.notices")
    assert settings.show("dpsql.max_groups") == "policy"


def test_what_is_set_reaches_the_query_exactly(settings: Settings) -> None:
    for name, value in (
        ("epsilon", "0.123456789"),
        ("delta", "3e-12"),
        ("mechanism", "laplace"),
        ("intervals", "on"),
        ("max_rows", "7"),
        ("max_groups", "3"),
        ("max_rows_per_group", "2"),
    ):
        settings.set(f"dpsql.{name}", value)
    query = settings.query(NOW, "ana")
    assert query.epsilon == Fraction(123456789, 10**9)
    assert query.delta == Fraction(3, 10**12)
    assert (query.mechanism, query.intervals) == ("laplace", True)
    assert (query.max_rows, query.max_groups, query.max_rows_per_group) == (7, 3, 2)


def test_a_target_is_a_number_or_a_share(settings: Settings) -> None:
    assert settings.target_error is None
    settings.set("dpsql.target_error", "2.5 %")
    assert settings.target_error == ErrorTarget("2.5 %", 0.025, True)
    settings.set("dpsql.target_error", "2.5")
    assert settings.target_error == ErrorTarget("2.5", 2.5, False)
    settings.set("dpsql.target_error", None)
    assert settings.target_error is None


def test_what_is_no_target_is_refused_with_those_there_are(settings: Settings) -> None:
    with pytest.raises(InvalidParameter) as caught:
        settings.set("dpsql.target_error", "200 %")
    assert caught.value.sqlstate == "22023"
    assert caught.value.hint is not None
    for example in caught.value.hint.split("; "):
        settings.set("dpsql.target_error", example.partition(" = ")[2].strip("'"))


def test_defaults_come_back(settings: Settings) -> None:
    settings.set("dpsql.epsilon", "0.2")
    settings.set("application_name", "x")
    settings.set("dpsql.epsilon", None)
    assert settings.show("dpsql.epsilon") == "0.1"
    settings.reset()
    assert settings.show("application_name") == ""
    with pytest.raises(InvalidParameter):
        settings.set("server_version", None)


def test_snapshots(settings: Settings) -> None:
    settings.set("dpsql.epsilon", "0.2")
    snapshot = settings.snapshot()
    settings.set("dpsql.epsilon", "0.3")
    settings.set("dpsql.notices", "off")
    settings.restore(snapshot)
    settings.set("application_name", "later")
    assert settings.show("dpsql.epsilon") == "0.2"
    assert settings.is_on("dpsql.notices")
    assert snapshot == SettingsSnapshot({"dpsql.epsilon": "0.2"}, {})


def test_reported_settings_are_there(settings: Settings) -> None:
    assert set(settings.reported()) == set(REPORTED)
    assert settings.reported()["DateStyle"] == "ISO, MDY"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("0", 0), ("1500", 1.5), ("250ms", 0.25), ("5s", 5), ("5 s", 5), ("2min", 120)),
        *(("soon", 0), ("-5", 0), ("", 0), ("ms", 0), ("1.5s", 0)),
    ],
)
def test_statement_timeout(settings: Settings, value: str, seconds: float) -> None:
    settings.set("statement_timeout", value)
    assert settings.statement_timeout == pytest.approx(seconds)


def test_names_are_each_there_once(settings: Settings) -> None:
    names = [name.lower() for name in settings.names()]
    assert names == sorted(set(names))
    assert all(isinstance(settings.show(name), str) for name in names)
