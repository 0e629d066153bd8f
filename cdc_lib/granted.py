"""Which of the needed grants are there, as the workspace says: ``cdc check --databricks``.

The answer counts what is inherited from the object above and what comes by a group, and that an owner needs
no grant. Of principals other than the one that asks, groups are not known, and only their own grants count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lib.config import Pipeline
from cdc_lib.errors import FixConfiguration
from cdc_lib.grants import RUNNER, Grant, needed
from cdc_lib.source import Finding

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

EVERYBODY = "account users"
_ALL = "ALL PRIVILEGES"


@dataclass(frozen=True)
class Checked:
    """The statements that give all rights, and a finding for each right of a role whose name is known."""

    statements: list[str]
    findings: list[Finding]


def check_grants(pipeline: Pipeline, principals: Mapping[str, str]) -> Checked:
    """What a pipeline's target needs in Unity Catalog, and what of it is there.

    :param principals: names by role; the runner is whoever is logged in, unless named.
    :raises FixConfiguration: the target is not in Unity Catalog.
    """
    grants = needed(pipeline)
    names = dict(principals)
    try:
        names, findings = _compare(grants, principals)
    except FixConfiguration as error:
        findings = [Finding("warning", "grants", f"{error.what}: {error.why}", error.remedy)]
    statements = [grant.sql(names.get(grant.role, f"<{grant.role}>")) for grant in grants]
    return Checked(statements, findings)


def _compare(grants: Sequence[Grant], principals: Mapping[str, str]) -> tuple[dict[str, str], list[Finding]]:
    """The names of the roles, and a finding for each grant of one: there, or missing with its statement.

    :raises FixConfiguration: the SDK is missing, no login is found, or the workspace does not answer.
    """
    try:
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.errors import DatabricksError
    except ModuleNotFoundError:
        raise FixConfiguration(
            "the grants cannot be looked up",
            why="module databricks.sdk is not installed",
            remedy="pip install 'cdc-lib[databricks]'",
        ) from None
    try:
        workspace = _Workspace(WorkspaceClient())
        named = {RUNNER: workspace.me, **principals}
        return named, [workspace.finding(grant, named[grant.role]) for grant in grants if grant.role in named]
    except DatabricksError as error:
        why = f"the workspace answered with {type(error).__name__}"
    except ValueError:
        # How the SDK says that it found no workspace to log in to.
        why = "no login to a workspace was found"
    raise FixConfiguration(
        "the grants cannot be looked up",
        why=why,
        remedy="databricks auth login, or set DATABRICKS_HOST and a login of the SDK's; the statements above "
        "say what is needed",
    )


class _Workspace:
    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client
        user = client.current_user.me()
        self.me = str(user.user_name)
        self._groups = {str(group.display) for group in user.groups or ()} | {EVERYBODY}

    def finding(self, grant: Grant, principal: str) -> Finding:
        subject = ".".join(grant.name)
        missing = self._missing(grant, principal)
        if missing is None:
            made = "create it, or deploy the bundle, then look again"
            return Finding(
                "error", subject, f"there is no such {grant.kind.lower()}, or it may not be seen", made
            )
        if not missing:
            return Finding("ok", subject, f"{principal} has {', '.join(grant.privileges)}")
        return Finding(
            "error", subject, f"{principal} lacks {', '.join(missing)}", grant.sql(principal, missing)
        )

    def _missing(self, grant: Grant, principal: str) -> list[str] | None:
        """The privileges that are not there; None if the object is not."""
        from databricks.sdk.errors import NotFound

        who = {principal} | (self._groups if principal == self.me else set())
        name = ".".join(grant.name)
        try:
            if self._owner(grant.kind, name) in who:
                return []
            held = self._held(grant.kind, name, who)
        except NotFound:
            return None
        return [] if _ALL in held else [each for each in grant.privileges if each not in held]

    def _owner(self, kind: str, name: str) -> str:
        objects = {
            "CATALOG": self._client.catalogs.get,
            "SCHEMA": self._client.schemas.get,
            "VOLUME": self._client.volumes.read,
        }
        return str(objects[kind](name).owner)

    def _held(self, kind: str, name: str, who: set[str]) -> set[str]:
        held: set[str] = set()
        token: str | None = None
        while True:
            page = self._client.grants.get_effective(kind, name, max_results=0, page_token=token)
            for assignment in page.privilege_assignments or ():
                if assignment.principal in who:
                    held |= {
                        each.privilege.value.replace("_", " ")
                        for each in assignment.privileges or ()
                        if each.privilege
                    }
            token = page.next_page_token
            if not token:
                return held
