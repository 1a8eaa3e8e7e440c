"""The client calls every route of the researchers' interface, and every command has a route."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from openapi_spec_validator import validate

from kitestring.client import (
    Studio,
    annotator,
    data,
    imports,
    playground,
    pushes,
    records,
    studies,
    studio,
    team,
)
from storage.engine.database import Database
from tests.helpers.served_studio import ServedStudio, served_studio
from tests.import_graph import ROOT

NOT_CALLED: dict[str, str] = {
    "GET /label/api/texts/{language}": "texts of the labeling page",
    "POST /label/api/language": "the language of the labeling page",
    "GET /label/api/follow-ups": "the page *What did my labels do?*",
    "GET /label/api/flag-answers": "read on the labeling page",
    "POST /label/api/flag-answers/read": "read on the labeling page",
    "GET /label/api/live": "live conversations need a person",
    "POST /label/api/live/prepare": "live conversations need a person",
    "POST /label/api/live/turns": "live conversations need a person",
    "GET /research/api/loop/form": "for the page; status() and settings() have what it returns",
}
"""Routes that Python needs no method for, and why."""

RENAMED = {
    "overrides": "settings",
    "messages": "prompt",
    "replies": "first",  # and second
}
"""Fields of the server that the client's methods name otherwise."""

FILLED_IN = {"before", "ruling", "id"}
"""Fields that the client fills in itself, besides a file's name."""

SAME = {
    "Row": "Judgment", "PromptRow": "Prompt", "StudioStatus": "Status", "SettingView": "Setting", "ConfigFile": "ConfigFile",
    "ModelBoard": "Leaderboard", "ModelRank": "Rank", "GateReport": "Gate", "PairInFull": "Pair",
    "ListedFlag": "Flag", "GivenAnswer": "FlagAnswer", "Comparison": "Curves",
    "storage__browsing__runs__Curve": "Curve",
    **{name: name for name in (
        "IterationStatus", "RunState", "Stopped", "RewardReport", "Standing", "GivenJudgment",
        "ShownPair", "ShownText", "ShownMessage",
        "StudyOffer", "RetrainOffer", "JudgmentCount", "StudySummary", "StudyRunSummary", "StudyDetails", "GivenRuling", "WaitingPair", "Exclusion", "RunCurves", "RaisedFlag", "Message",
    )},
}  # fmt: skip
"""The server's shapes and the client's classes."""

ROUTES = {
    "audit.list": "GET /research/api/audit",
    "audit.write": "GET /research/download/audit",
    "ask": "POST /research/api/playground/replies",
    "cancel": "POST /research/api/loop/cancel",
    "evaluation.completions": "GET /research/api/iterations/{number}/evaluation",
    "evidence": "GET /research/download/evidence",
    "export": "GET /research/download/export",
    "gate": "GET /research/api/gate",
    "gate.override": "POST /research/api/gate/override",
    "iteration": "GET /research/api/iterations/{number}",
    "label-more": "POST /research/api/loop/label-more",
    "leaderboard": "GET /research/api/leaderboard",
    "lineage.graph": "GET /research/api/lineage",
    "lineage": "GET /research/api/lineage/{policy}",
    "resume": "POST /research/api/loop/resume",
    "retry": "POST /research/api/loop/retry",
    "reward.report": "GET /research/api/reward",
    "reward.retrain": "POST /research/api/studies",
    "runs.compare": "GET /research/api/runs/curves",
    "runs.describe": "POST /research/api/runs/{id}",
    "runs.get": "GET /research/api/runs/{id}",
    "runs.log": "GET /research/api/runs/{id}/log",
    "runs.list": "GET /research/api/runs",
    "settings": "GET /research/api/settings",
    "settings.list": "GET /research/api/config",
    "settings.save": "POST /research/api/config",
    "status": "GET /research/api/status",
    "studies.list": "GET /research/api/studies",
    "studies.get": "GET /research/api/studies/{id}",
    "studies.cancel": "POST /research/api/studies/{id}/cancel",
    "studies.continue": "POST /research/api/studies/{id}/continue",
    "train": "POST /research/api/loop/train",
    "adjudicate.list": "GET /research/api/adjudication",
    "adjudicate.show": "GET /research/api/adjudication/{id}",
    "adjudicate.send": "POST /research/api/adjudication/{id}/send",
    "adjudicate.rule": "POST /research/api/adjudication/{id}/rule",
    "guidelines.show": "GET /research/api/guidelines",
    "guidelines.save": "POST /research/api/guidelines",
    "form.show": "GET /research/api/form",
    "form.set": "POST /research/api/form",
    "practice.show": "GET /research/api/practice",
    "practice.ask": "POST /research/api/practice",
    "flags.list": "GET /research/api/flags",
    "flags.answer": "POST /research/api/flags/{id}/answer",
    "flags.clear": "POST /research/api/flags/{id}/clear",
    "gold.list": "GET /research/api/gold",
    "gold.make": "POST /research/api/gold",
    "gold.retire": "POST /research/api/gold/{id}/retire",
    "gold.restore": "POST /research/api/gold/{id}/restore",
    "judgments.list": "GET /research/api/judgments",
    "judgments.show": "GET /research/api/judgments/{id}",
    "judgments.exclude": "POST /research/api/judgments/{id}/exclude",
    "judgments.restore": "POST /research/api/judgments/{id}/restore",
    "judgments.exclude_all": "POST /research/api/judgments/exclude",
    "judgments.restore_all": "POST /research/api/judgments/restore",
    "prompts.list": "GET /research/api/prompts",
    "prompts.add": "POST /research/api/prompts",
    "prompts.edit": "POST /research/api/prompts/{id}",
    "users.list": "GET /research/api/people",
    "users.add": "POST /research/api/people",
    "users.role": "POST /research/api/people/role",
    "users.disable": "POST /research/api/people/disable",
    "users.enable": "POST /research/api/people/enable",
    "users.revoke": "POST /research/api/people/revoke",
    "webhooks.list": "GET /research/api/webhooks",
    "webhooks.add": "POST /research/api/webhooks",
    "webhooks.deliveries": "GET /research/api/webhooks/deliveries",
    "webhooks.resend": "POST /research/api/webhooks/deliveries/{id}/resend",
    **{
        f"webhooks.{act}": f"POST /research/api/webhooks/{{id}}/{act}"
        for act in ("test", "enable", "disable", "remove", "rotate")
    },
    "push": "POST /research/api/pushes",
    "push.plan": "GET /research/api/pushes/plan/{model}",
    "import": "POST /research/api/imports",
}
"""The route of each command."""

IN_A_TERMINAL = {
    "advance": "the server's timer does it once a second",
    "backup": "writes to a folder of the server's machine",
    "verify": "reads the whole journal beside the server",
    "judge.open": "a step of `launch.py judge`; judges over HTTP use /label/api/next",
    "judge.save": "a step of `launch.py judge`; judges over HTTP use /label/api/judgments",
}
"""Commands without a route, and why."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStudio]:
    workspace = tmp_path_factory.mktemp("routes") / "study"
    Database.open(workspace).close()
    with served_studio(workspace) as served:
        yield served


@pytest.fixture(scope="module")
def document(served: ServedStudio) -> dict[str, Any]:
    """The documents of both interfaces, in one; each has its own shapes."""
    found: dict[str, Any] = {"paths": {}, "components": {"schemas": {}}}
    for name, role, prefix in (("Vera", "viewer", "research"), ("Ann", "annotator", "label")):
        headers = {"Authorization": f"Bearer {served.token(name, role)}"}
        part = httpx.get(f"{served.url}/{prefix}/api/openapi.json", headers=headers).json()
        found["paths"] |= part["paths"]
        # The research document's shapes win where both have the name.
        shapes = part["components"]["schemas"]
        found["components"]["schemas"] = shapes | found["components"]["schemas"]
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def methods() -> dict[str, Callable[..., Any]]:
    """The client's method for each route."""
    found = {}
    for module in (annotator, studio, data, imports, playground, pushes, studies, team):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__:
                for _, function in inspect.getmembers(kind, inspect.isfunction):
                    for method, path in vars(function).get("routes", ()):
                        found[f"{method} {path}"] = function
    return found


def test_the_document_is_valid_and_describes_every_route(served, document):
    headers = {"Authorization": f"Bearer {served.token('Vera')}"}
    validate(httpx.get(f"{served.url}/research/api/openapi.json", headers=headers).json())
    prefixes = ("/research/api", "/research/download", "/research/upload", "/label/api")
    there = {name for name in routes_of(served.app) if name.split()[1].startswith(prefixes)}
    undescribed = {"GET /research/api/openapi.json", "GET /label/api/openapi.json"}
    assert there - operations(document).keys() == undescribed
    assert len(there) > 50


def routes_of(app: Any) -> set[str]:
    """The routes of the application, as method and path."""
    found = set()
    for route in app.routes:
        router = getattr(route, "original_router", None)
        for each in router.routes if router else [route]:
            if isinstance(each, APIRoute):
                found |= {f"{method} {each.path}" for method in each.methods}
    return found


def test_every_route_has_a_method(document):
    missing = sorted(operations(document).keys() - methods().keys() - NOT_CALLED.keys())
    assert not missing, (
        f"No method of kitestring.client calls {', '.join(missing)}. Add a method with "
        "@route(…) to a class in kitestring/client/, call it in tests/kitestring/test_client.py, and "
        "add its row to docs/client.md; or name the route in NOT_CALLED with the reason."
    )


def test_every_method_has_a_route(document):
    gone = sorted(methods().keys() - operations(document).keys())
    assert not gone, f"The server has no {', '.join(gone)}. Remove or rename the client's methods."


def test_the_methods_take_what_the_routes_take(document):
    schemas, missing = document["components"]["schemas"], []
    for name, operation in operations(document).items():
        if name in NOT_CALLED:
            continue
        taken = inspect.signature(methods()[name]).parameters.keys()
        wanted = {
            each["name"] for each in operation.get("parameters", ()) if each["in"] != "header"
        }
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if reference := body.get("schema", {}).get("$ref"):
            wanted |= schemas[reference.rsplit("/", 1)[1]]["properties"].keys()
        if "upload" in name:
            wanted -= {"name"}
        missing += [
            f"{methods()[name].__qualname__} takes no {RENAMED.get(each, each)} ({name})"
            for each in wanted - FILLED_IN
            if RENAMED.get(each, each) not in taken
        ]
    assert missing == []


@pytest.mark.parametrize("shape", SAME)
def test_the_records_have_the_fields_of_the_server(document, shape):
    wanted = document["components"]["schemas"][shape]["properties"].keys()
    assert {each.name for each in fields(getattr(records, SAME[shape]))} == set(wanted)


def test_every_command_has_a_route_or_a_reason(served, document):
    names = served.studio.commands.names()
    missing = sorted(names - ROUTES.keys() - IN_A_TERMINAL.keys())
    assert not missing, (
        f"The commands {', '.join(missing)} have no route. Add one in labeler/research/api/, a rule "
        "in labeler/security/access.py and a row to ROUTES; or name the command in IN_A_TERMINAL "
        "with the reason."
    )
    assert (ROUTES.keys() | IN_A_TERMINAL.keys()) - names == set()
    assert set(ROUTES.values()) - operations(document).keys() == set()


def test_the_reference_lists_every_method():
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    spaces = {"Prompts": "prompts", "Adjudications": "adjudication", "GoldPairs": "gold"}
    for function in methods().values():
        kind, name = function.__qualname__.split(".")
        where = f"studio.{spaces.get(kind, kind.lower())}"
        where = {"Studio": "studio", "Annotator": "annotator"}.get(kind, where)
        assert f"`{where}.{name}(" in page, f"docs/client.md lacks {where}.{name}"
    assert "`studio.wait(" in page
    assert "`studio.playground.ask(" in page
    assert Studio.wait.__doc__
