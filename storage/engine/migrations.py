"""The schema, as numbered migrations.  Each runs once, in one transaction with its record.

`Database._connect` calls `migrate` whenever a workspace is opened.  A failed migration is rolled
back and the workspace stays closed; a database of a newer version is refused (`applied_to`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb

from storage.engine import items
from storage.errors import StorageDamaged

Connection = duckdb.DuckDBPyConnection
Migration = Callable[[Connection], None]

# No foreign keys: DuckDB refuses to update a row that another row refers to.
_TABLES = """
CREATE TABLE prompts (
    id VARCHAR PRIMARY KEY, role VARCHAR NOT NULL, messages JSON NOT NULL,
    category VARCHAR, source VARCHAR, created_at TIMESTAMPTZ);
CREATE TABLE completions (
    id VARCHAR PRIMARY KEY, prompt VARCHAR NOT NULL, policy VARCHAR NOT NULL,
    text VARCHAR NOT NULL, tokens BIGINT, finish_reason VARCHAR,
    temperature DOUBLE, top_p DOUBLE, seed BIGINT, created_at TIMESTAMPTZ);
CREATE TABLE comparisons (
    id VARCHAR PRIMARY KEY, prompt VARCHAR NOT NULL, first VARCHAR NOT NULL,
    second VARCHAR NOT NULL, iteration BIGINT NOT NULL, arm VARCHAR NOT NULL,
    wanted BIGINT NOT NULL, position BIGINT NOT NULL, item VARCHAR, created_at TIMESTAMPTZ);
CREATE TABLE judgments (
    id VARCHAR PRIMARY KEY, comparison VARCHAR NOT NULL, annotator VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL, shown_swapped BOOLEAN NOT NULL, strength BIGINT,
    criteria JSON, comment VARCHAR, milliseconds BIGINT, replaces VARCHAR UNIQUE,
    created_at TIMESTAMPTZ);
CREATE TABLE withdrawals (
    id VARCHAR PRIMARY KEY, replaces VARCHAR NOT NULL UNIQUE, annotator VARCHAR NOT NULL,
    created_at TIMESTAMPTZ);
CREATE TABLE skips (
    id VARCHAR PRIMARY KEY, comparison VARCHAR NOT NULL, annotator VARCHAR NOT NULL,
    created_at TIMESTAMPTZ);
CREATE TABLE flags (
    id VARCHAR PRIMARY KEY, comparison VARCHAR NOT NULL, annotator VARCHAR NOT NULL,
    comment VARCHAR, created_at TIMESTAMPTZ);
CREATE TABLE snapshots (
    hash VARCHAR PRIMARY KEY, iteration BIGINT, judgments BIGINT NOT NULL,
    created_at TIMESTAMPTZ);
CREATE TABLE snapshot_judgments (snapshot VARCHAR NOT NULL, judgment VARCHAR NOT NULL);
CREATE TABLE annotators (
    id VARCHAR PRIMARY KEY, name VARCHAR NOT NULL UNIQUE, role VARCHAR NOT NULL,
    kind VARCHAR NOT NULL, password_hash VARCHAR, disabled BOOLEAN NOT NULL,
    created_at TIMESTAMPTZ);
CREATE TABLE tokens (
    hash VARCHAR PRIMARY KEY, annotator VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    created_at TIMESTAMPTZ, expires_at TIMESTAMPTZ, revoked BOOLEAN NOT NULL);
CREATE TABLE leases (
    comparison VARCHAR, annotator VARCHAR, granted_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (comparison, annotator));
CREATE TABLE models (
    id VARCHAR PRIMARY KEY, role VARCHAR NOT NULL, name VARCHAR NOT NULL, path VARCHAR,
    parent VARCHAR, iteration BIGINT, run VARCHAR, reward_model VARCHAR, snapshot VARCHAR,
    summary JSON, created_at TIMESTAMPTZ);
CREATE TABLE iterations (
    number BIGINT PRIMARY KEY, phase VARCHAR NOT NULL, policy_sampled VARCHAR,
    reward_model VARCHAR, policy_produced VARCHAR, labels_wanted BIGINT, verdict VARCHAR,
    settings JSON, evaluation JSON, created_at TIMESTAMPTZ, finished_at TIMESTAMPTZ);
CREATE TABLE runs (
    id VARCHAR PRIMARY KEY, stage VARCHAR NOT NULL, iteration BIGINT NOT NULL,
    status VARCHAR NOT NULL, directory VARCHAR NOT NULL, attempt BIGINT, reason VARCHAR,
    config JSON, progress DOUBLE, message VARCHAR, ingested_seq BIGINT,
    created_at TIMESTAMPTZ, finished_at TIMESTAMPTZ);
CREATE TABLE metrics (
    run VARCHAR NOT NULL, seq BIGINT NOT NULL, step BIGINT NOT NULL, name VARCHAR NOT NULL,
    value DOUBLE);
CREATE TABLE run_notes (
    run VARCHAR NOT NULL, seq BIGINT NOT NULL, step BIGINT NOT NULL, kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL, message VARCHAR NOT NULL, payload JSON);
CREATE TABLE settings (key VARCHAR PRIMARY KEY, value JSON);
"""

_VIEWS = """
CREATE VIEW current_judgments AS
    SELECT j.* FROM judgments AS j
    ANTI JOIN judgments AS later ON later.replaces = j.id
    ANTI JOIN withdrawals AS w ON w.replaces = j.id;
CREATE VIEW open_skips AS
    SELECT s.* FROM skips AS s ANTI JOIN withdrawals AS w ON w.replaces = s.id;
CREATE VIEW open_flags AS
    SELECT f.* FROM flags AS f ANTI JOIN withdrawals AS w ON w.replaces = f.id;
"""

_GATE = """
CREATE TABLE predictions (
    comparison VARCHAR PRIMARY KEY, reward_model VARCHAR NOT NULL, first DOUBLE NOT NULL,
    first_score DOUBLE NOT NULL, second_score DOUBLE NOT NULL, created_at TIMESTAMPTZ);
CREATE TABLE gate_overrides (
    id VARCHAR PRIMARY KEY, policy VARCHAR NOT NULL, ruling VARCHAR NOT NULL,
    reason VARCHAR NOT NULL, researcher VARCHAR, created_at TIMESTAMPTZ);
"""


def m001_initial(connection: Connection) -> None:
    """The tables of the records, and views without revised and withdrawn records."""
    connection.execute(_TABLES)
    connection.execute(_VIEWS)


def m002_items(connection: Connection) -> None:
    """Which comparisons show the same two texts."""
    connection.execute(items.TABLE)
    items.add(connection)


def m003_gate(connection: Connection) -> None:
    """Predictions of reward models for judged pairs, and rulings of researchers."""
    connection.execute(_GATE)


def m004_order(connection: Connection) -> None:
    """The order in which judgments, skips and flags were stored; earlier ones by their time."""
    for table in ("judgments", "skips", "flags"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN seq BIGINT")
    for table in ("judgments", "skips", "flags"):
        connection.execute(
            f"UPDATE {table} SET seq = o.seq FROM ({_ORDER}) AS o WHERE o.id = {table}.id"
        )


def m005_policy_stage(connection: Connection) -> None:
    """The stage and phase "ppo" are now called "policy"."""
    connection.execute("UPDATE iterations SET phase = 'policy' WHERE phase = 'ppo'")
    connection.execute("UPDATE runs SET stage = 'policy' WHERE stage = 'ppo'")


def m006_guidelines(connection: Connection) -> None:
    """The version of the guidelines that an annotator saw with each judgment."""
    connection.execute("ALTER TABLE judgments ADD COLUMN guidelines VARCHAR")


_CHECKS = """
CREATE TABLE checks (
    comparison VARCHAR PRIMARY KEY, kind VARCHAR NOT NULL, answer VARCHAR, annotator VARCHAR,
    judgment VARCHAR, source VARCHAR, active BOOLEAN NOT NULL, created_at TIMESTAMPTZ);
DROP VIEW current_judgments;
CREATE VIEW standing_judgments AS
    SELECT j.* FROM judgments AS j
    ANTI JOIN judgments AS later ON later.replaces = j.id
    ANTI JOIN withdrawals AS w ON w.replaces = j.id;
CREATE VIEW current_judgments AS
    SELECT j.* FROM standing_judgments AS j ANTI JOIN checks AS k ON k.comparison = j.comparison;
"""


def m007_checks(connection: Connection) -> None:
    """Pairs that measure annotators; the view `current_judgments` leaves out their judgments."""
    connection.execute(_CHECKS)


def m008_form(connection: Connection) -> None:
    """Reason tags and safety labels of each response, in a judgment."""
    for column in ("reasons", "safety"):
        connection.execute(f"ALTER TABLE judgments ADD COLUMN {column} JSON")


def m009_live(connection: Connection) -> None:
    """The conversation and the turn of a pair of the arm `live`."""
    connection.execute("ALTER TABLE comparisons ADD COLUMN conversation VARCHAR")
    connection.execute("ALTER TABLE comparisons ADD COLUMN turn INTEGER")


def m010_edit(connection: Connection) -> None:
    """The preferred response as the annotator improved it."""
    connection.execute("ALTER TABLE judgments ADD COLUMN edit VARCHAR")


def m011_practice(connection: Connection) -> None:
    """The explanation that an annotator sees after a practice pair."""
    connection.execute("ALTER TABLE checks ADD COLUMN explanation VARCHAR DEFAULT ''")


_FLAG_ANSWERS = """
CREATE TABLE flag_answers (
    id VARCHAR PRIMARY KEY, flag VARCHAR NOT NULL, researcher VARCHAR NOT NULL,
    text VARCHAR NOT NULL, created_at TIMESTAMPTZ, read_at TIMESTAMPTZ);
"""


def m012_flag_answers(connection: Connection) -> None:
    """Answers of researchers to flags."""
    connection.execute(_FLAG_ANSWERS)


def m013_marks(connection: Connection) -> None:
    """The passages of each response that the annotator marked, in a judgment."""
    connection.execute("ALTER TABLE judgments ADD COLUMN marks JSON")


_FOLLOW_UPS = """
CREATE TABLE follow_ups (
    id VARCHAR PRIMARY KEY, iteration BIGINT NOT NULL, prompt VARCHAR NOT NULL,
    policy VARCHAR NOT NULL, text VARCHAR NOT NULL, learned JSON NOT NULL, tokens BIGINT,
    finish_reason VARCHAR, temperature DOUBLE, top_p DOUBLE, seed BIGINT, created_at TIMESTAMPTZ);
"""


def m014_follow_ups(connection: Connection) -> None:
    """Answers of new policies to prompts that people judged."""
    connection.execute(_FOLLOW_UPS)


_EXCLUSIONS = """
CREATE TABLE exclusions (
    judgment VARCHAR PRIMARY KEY, excluded BOOLEAN NOT NULL, reason VARCHAR, researcher VARCHAR,
    created_at TIMESTAMPTZ);
DROP VIEW current_judgments;
CREATE VIEW current_judgments AS
    SELECT j.* FROM standing_judgments AS j
    ANTI JOIN checks AS k ON k.comparison = j.comparison
    ANTI JOIN exclusions AS x ON x.judgment = j.id AND x.excluded;
"""


def m015_exclusions(connection: Connection) -> None:
    """Judgments that researchers excluded; the view `current_judgments` leaves them out."""
    connection.execute(_EXCLUSIONS)


_NOTIFICATIONS = """
CREATE TABLE events (
    id VARCHAR PRIMARY KEY, type VARCHAR NOT NULL, data JSON NOT NULL, created_at TIMESTAMPTZ);
CREATE TABLE webhooks (
    id VARCHAR PRIMARY KEY, url VARCHAR NOT NULL, events JSON NOT NULL, description VARCHAR,
    active BOOLEAN NOT NULL, reason VARCHAR, removed BOOLEAN NOT NULL, secret BIGINT NOT NULL,
    secret_hash VARCHAR NOT NULL, rotated_at TIMESTAMPTZ, created_at TIMESTAMPTZ);
CREATE TABLE deliveries (
    id VARCHAR PRIMARY KEY, webhook VARCHAR NOT NULL, event VARCHAR NOT NULL,
    status VARCHAR NOT NULL, attempts BIGINT NOT NULL, next_at TIMESTAMPTZ, code BIGINT,
    error VARCHAR, attempted_at TIMESTAMPTZ, created_at TIMESTAMPTZ);
"""


def m016_notifications(connection: Connection) -> None:
    """Events, webhooks, and the deliveries of events to webhooks."""
    connection.execute(_NOTIFICATIONS)


_ADJUDICATION = """
CREATE TABLE adjudication_requests (
    id VARCHAR PRIMARY KEY, comparison VARCHAR NOT NULL, researcher VARCHAR,
    created_at TIMESTAMPTZ);
CREATE TABLE adjudications (
    id VARCHAR PRIMARY KEY, comparison VARCHAR NOT NULL, adjudicator VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL, shown_swapped BOOLEAN NOT NULL, reason VARCHAR,
    created_at TIMESTAMPTZ);
CREATE VIEW rulings AS
    SELECT comparison, arg_max(outcome, (created_at, id)) AS outcome,
           arg_max(reason, (created_at, id)) AS reason, max(created_at) AS created_at
    FROM adjudications GROUP BY comparison;
"""
_PROMPT_EDITS = """
CREATE TABLE prompt_edits (
    prompt VARCHAR PRIMARY KEY, retired BOOLEAN NOT NULL, category VARCHAR, researcher VARCHAR,
    created_at TIMESTAMPTZ);
CREATE VIEW retired_prompts AS SELECT prompt FROM prompt_edits WHERE retired;
"""


def m017_adjudication(connection: Connection) -> None:
    """Rulings of adjudicators, and the newest of each comparison; pairs that were sent to them."""
    connection.execute(_ADJUDICATION)


def m018_prompt_edits(connection: Connection) -> None:
    """Prompts that researchers retired, and categories that they changed."""
    connection.execute(_PROMPT_EDITS)


_LINKED_IDENTITIES = """
CREATE TABLE linked_identities (
    id VARCHAR PRIMARY KEY, annotator VARCHAR NOT NULL, issuer VARCHAR NOT NULL,
    subject VARCHAR NOT NULL, created_at TIMESTAMPTZ);
"""


def m019_linked_identities(connection: Connection) -> None:
    """Accounts at OpenID providers that open accounts here."""
    connection.execute(_LINKED_IDENTITIES)


_AUDIT = """
CREATE TABLE audit_log (
    id VARCHAR PRIMARY KEY, action VARCHAR NOT NULL, subject VARCHAR, actor VARCHAR,
    via VARCHAR NOT NULL, details JSON, created_at TIMESTAMPTZ);
"""


def m020_audit(connection: Connection) -> None:
    """The audit log."""
    connection.execute(_AUDIT)


def m021_attempts(connection: Connection) -> None:
    """The start of a resumed run, and the seconds that all of its attempts took."""
    connection.execute("ALTER TABLE runs ADD COLUMN started_at TIMESTAMPTZ")
    connection.execute("ALTER TABLE runs ADD COLUMN seconds DOUBLE")


_RUN_LABELS = """
CREATE TABLE run_labels (
    run VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, note VARCHAR NOT NULL, researcher VARCHAR,
    created_at TIMESTAMPTZ);
"""


def m022_run_labels(connection: Connection) -> None:
    """Names and notes of runs."""
    connection.execute(_RUN_LABELS)


_STUDIES = """
CREATE TABLE studies (
    id VARCHAR PRIMARY KEY, kind VARCHAR NOT NULL, name VARCHAR NOT NULL, status VARCHAR NOT NULL,
    repeats VARCHAR NOT NULL, iteration INTEGER NOT NULL, plan JSON, settings JSON, reason VARCHAR,
    progress DOUBLE, message VARCHAR, created_by VARCHAR, created_at TIMESTAMPTZ,
    started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ);
CREATE TABLE study_runs (
    id VARCHAR PRIMARY KEY, study VARCHAR NOT NULL, title VARCHAR NOT NULL,
    method VARCHAR NOT NULL, status VARCHAR NOT NULL, directory VARCHAR NOT NULL,
    attempt INTEGER NOT NULL, reason VARCHAR, config JSON, progress DOUBLE, message VARCHAR,
    ingested_seq INTEGER, created_at TIMESTAMPTZ, finished_at TIMESTAMPTZ, seconds DOUBLE);
"""


def m023_studies(connection: Connection) -> None:
    """Studies and their runs, apart from the loop's runs."""
    connection.execute(_STUDIES)


_LAST_METRICS = """
CREATE TABLE last_metrics (
    run VARCHAR NOT NULL, name VARCHAR NOT NULL, step BIGINT NOT NULL, seq BIGINT NOT NULL,
    value DOUBLE);
INSERT INTO last_metrics
    SELECT run, name, max(step), arg_max(seq, (step, seq)), arg_max(value, (step, seq))
    FROM metrics GROUP BY run, name;
"""


def m024_last_metrics(connection: Connection) -> None:
    """The last value of each metric of each run."""
    connection.execute(_LAST_METRICS)


_ORDER = """
    SELECT id, row_number() OVER (ORDER BY created_at, id) AS seq FROM (
        SELECT id, created_at FROM judgments UNION ALL
        SELECT id, created_at FROM skips UNION ALL
        SELECT id, created_at FROM flags)
"""

MIGRATIONS: tuple[Migration, ...] = (
    m001_initial,
    m002_items,
    m003_gate,
    m004_order,
    m005_policy_stage,
    m006_guidelines,
    m007_checks,
    m008_form,
    m009_live,
    m010_edit,
    m011_practice,
    m012_flag_answers,
    m013_marks,
    m014_follow_ups,
    m015_exclusions,
    m016_notifications,
    m017_adjudication,
    m018_prompt_edits,
    m019_linked_identities,
    m020_audit,
    m021_attempts,
    m022_run_labels,
    m023_studies,
    m024_last_metrics,
)

# `journal_bytes`: the length of the journal that is applied, written in each group's transaction.
_META = """
CREATE TABLE IF NOT EXISTS migrations (name VARCHAR PRIMARY KEY, applied_at TIMESTAMPTZ);
CREATE TABLE IF NOT EXISTS meta (key VARCHAR PRIMARY KEY, value VARCHAR);
INSERT INTO meta VALUES ('journal_bytes', '0') ON CONFLICT DO NOTHING;
"""


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Apply the missing migrations, in order; returns their names.

    Raises StorageDamaged for a database that a newer version has migrated further.
    """
    connection.execute(_META)
    applied = applied_to(connection, migrations)
    for migration in migrations[len(applied) :]:
        _apply(connection, migration)
    return [migration.__name__ for migration in migrations[len(applied) :]]


def applied_to(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """The names of the applied migrations; StorageDamaged as in `migrate`."""
    names = [migration.__name__ for migration in migrations]
    rows = connection.execute("SELECT name FROM main.migrations ORDER BY name").fetchall()
    applied = [row[0] for row in rows]
    if applied != names[: len(applied)]:
        unknown = ", ".join(sorted(set(applied) - set(names))) or "out of order"
        raise StorageDamaged(
            f"this workspace was last opened by another version of Kitestring ({unknown}); "
            "update Kitestring to open it"
        )
    return applied


def _apply(connection: Connection, migration: Migration) -> None:
    connection.execute("BEGIN")
    try:
        migration(connection)
        connection.execute(
            "INSERT INTO migrations VALUES ($name, now())", {"name": migration.__name__}
        )
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
