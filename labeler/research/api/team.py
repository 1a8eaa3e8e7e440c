"""Routes for people, the audit log and webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from labeler.research.api.bodies import PREFIX, Id, Text, Yes
from labeler.webhooks.service import Webhooks
from storage.commands import Commands
from storage.notification_records import EVENTS, DeliveryStatus, EventType
from storage.records import AnnotatorRole

NO_WEBHOOKS = "This server sends no webhooks."


def people_routes(
    commands: Commands, *, accounts_changed: Callable[[], None], public_url: str | None
) -> APIRouter:
    """Accounts by name.  `public_url` is the address in invite links; by default, the request's."""
    routes = APIRouter(prefix=f"{PREFIX}/people")
    add_user = commands.function("users.add")
    routes.get("")(commands.function("users.list"))

    @routes.post("")
    def add(
        name: Id,
        request: Request,
        role: Annotated[AnnotatorRole, Body(embed=True)] = "annotator",
        token: Yes = False,
    ) -> dict[str, Any]:
        """An account with an invite link, or with `token` an API token; an account that exists gets
        another one."""
        made = add_user(name, role=role, token=token)
        if "invite" in made:  # the command has no address
            made["invite"] = (public_url or str(request.base_url).rstrip("/")) + made["invite"]
        return made

    @routes.post("/role")
    def role(name: Id, role: Annotated[AnnotatorRole, Body(embed=True)]) -> dict[str, Any]:
        return changed("users.role", name=name, role=role)

    @routes.post("/disable")
    def disable(name: Id) -> dict[str, Any]:
        """Sign a person out everywhere."""
        return changed("users.disable", name=name)

    @routes.post("/enable")
    def enable(name: Id) -> dict[str, Any]:
        return changed("users.enable", name=name)

    @routes.post("/revoke")
    def revoke(name: Id) -> dict[str, Any]:
        """Revoke a person's invites and API tokens."""
        return changed("users.revoke", name=name)

    def changed(command: str, **arguments: Any) -> dict[str, Any]:
        try:
            return commands.function(command)(**arguments)
        finally:
            accounts_changed()

    return routes


def audit_routes(commands: Commands) -> APIRouter:
    """Entries of the audit log, with the filters of the command."""
    routes = APIRouter(prefix=PREFIX)
    routes.get("/audit")(commands.function("audit.list"))
    return routes


def webhook_routes(webhooks: Webhooks | None) -> APIRouter:
    """Webhooks; without them, every route is refused."""
    routes = APIRouter(prefix=f"{PREFIX}/webhooks")

    def service() -> Webhooks:
        if webhooks is None:
            raise ValueError(NO_WEBHOOKS)
        return webhooks

    @routes.get("")
    def listed() -> list[dict[str, Any]]:
        return service().listing()

    @routes.post("")
    def add(
        url: Text,
        events: Annotated[list[EventType] | None, Body(embed=True)] = None,
        description: Text = "",
    ) -> dict[str, Any]:
        """A webhook with its secret, which is not shown again; by default for all events."""
        return service().add(url, _in_order(events or EVENTS), description)

    @routes.get("/deliveries")
    def deliveries(
        webhook: str | None = None, status: DeliveryStatus | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        return service().deliveries(webhook, status, limit)

    @routes.post("/deliveries/{id}/resend")
    def resend(id: str) -> dict[str, Any]:
        return service().resend(id)

    @routes.post("/{id}/test")
    def test(id: str) -> dict[str, Any]:
        """Send a ping now; the answer has its delivery."""
        return service().test(id)

    @routes.post("/{id}/enable")
    def enable(id: str) -> dict[str, Any]:
        return service().enable(id)

    @routes.post("/{id}/disable")
    def disable(id: str) -> dict[str, Any]:
        return service().disable(id)

    @routes.post("/{id}/remove")
    def remove(id: str) -> dict[str, Any]:
        return service().remove(id)

    @routes.post("/{id}/rotate")
    def rotate(id: str) -> dict[str, Any]:
        """Replace the secret; the answer has the new one."""
        return service().rotate(id)

    return routes


def _in_order(events: Iterable[EventType]) -> list[EventType]:
    wanted = set(events)
    return [event for event in EVENTS if event in wanted]
