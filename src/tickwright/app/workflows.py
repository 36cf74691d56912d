"""Workflows in a program: jobs that wait for jobs, built in a block and added at its end, all or none.

::

    async with app.workflow("onboard", deadline="2h") as flow:
        account = flow.add(create_account, email="ada@example.org")
        mail = flow.add(send_mail, account=account.value)              # its result is an argument
        flow.add(report, after=[mail], on_failed="run")                # runs whichever way mail ends

    await flow.result(timeout="3h")

The block only builds: it reads and writes nothing. Its end adds the workflow, in your transaction where you give a
connection. What the database refuses is refused for every caller in the same way; see
:mod:`tickwright.capabilities.jobs.workflows.definition`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from tickwright.app.borrowed import one_connection
from tickwright.app.declarations import Duration, as_duration
from tickwright.app.jobs import JobCall, JobHandle, JobOptions
from tickwright.capabilities.jobs.requests import NewJob, check_new_job
from tickwright.capabilities.jobs.workflows.definition import (
    InnerWorkflow,
    OnFailed,
    WorkflowDefinition,
    WorkflowJob,
    interval_text,
    job_of,
)
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.store.borrowed import borrow, borrow_sync, finish

if TYPE_CHECKING:
    from tickwright.app.scheduling import JobCalls

P = ParamSpec("P")
R = TypeVar("R")
RESULTS_IN_ARGUMENT_MAX = 1000
"""Results in one argument; a job that waits for more reads them in pages."""


class Node(Generic[R]):
    """A job of a workflow.

    Attributes:
        name: Unique in the workflow.
        returns: The type of its result.
    """

    def __init__(self, flow: "FlowPart", job: WorkflowJob, returns: Any) -> None:
        self._flow, self._job, self.returns = flow, job, returns
        self.name = cast("str", job.name)

    @property
    def value(self) -> R:
        """Its result, as an argument of a later job: a placeholder, which has the type of the result for a checker."""
        return cast("R", self)

    @property
    def id(self) -> int:
        """The job's id, once the workflow is added. Raises ``Unavailable`` (``workflow_not_added``)."""
        return self._flow.id_of(self.name)

    @property
    def handle(self) -> JobHandle[R]:
        """The job, to wait for its result, once the workflow is added and committed."""
        return JobHandle(self.id, True, app=self._flow.app, returns=self.returns)

    def after(self, *nodes: "Dependency", on_failed: OnFailed | None = None) -> "Node[R]":
        """Let it wait for more nodes, and say what it does where one of them does not complete; return it."""
        self._job.after += self._flow.names_of(nodes)
        if on_failed is not None:
            self._job.on_failed = on_failed
        return self

    def __repr__(self) -> str:
        return f"<node {self.name!r}>"


Step = JobCall[Any] | JobOptions[Any, Any] | NewJob
"""A job to add: a call, a job without arguments, or one of ``app.new_job``."""


class FlowGroup(Sequence[Node[Any]]):
    """Nodes that can run beside each other, and the jobs that follow them."""

    def __init__(self, nodes: Sequence[Node[Any]], callbacks: Sequence[Node[Any]]) -> None:
        self._nodes, self.callbacks = nodes, callbacks

    @overload
    def __getitem__(self, index: int) -> Node[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node[Any]]: ...
    def __getitem__(self, index: int | slice) -> Node[Any] | Sequence[Node[Any]]:
        """Return a node by its place."""
        return self._nodes[index]

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def value(self) -> list[Any]:
        """Their results, as an argument of a later job."""
        return cast("list[Any]", self)


class FlowPart:
    """What adds jobs: a workflow, or one inside of it."""

    app: "JobCalls"

    def __init__(self, root: "Flow", inner: InnerWorkflow | None) -> None:
        self._root, self._inner, self._closed = root, inner, False

    @overload
    def add(self, job: JobOptions[P, R], *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(
        self,
        job: JobOptions[..., R],
        *args: Any,
        after: "Iterable[Dependency]",
        on_failed: OnFailed = "cancel",
        node: str | None = None,
        **kwargs: Any,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        job: JobCall[R],
        *,
        after: "Iterable[Dependency]" = (),
        on_failed: OnFailed = "cancel",
        node: str | None = None,
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        job: NewJob,
        *,
        after: "Iterable[Dependency]" = (),
        on_failed: OnFailed = "cancel",
        node: str | None = None,
        **results: Any,
    ) -> Node[Any]: ...
    def add(self, job: Any, *args: Any, **kwargs: Any) -> Node[Any]:
        """Add a job. A result of an earlier node is an argument by its ``value``; the job then waits for that node.

        Args:
            job: A job, with its options and the arguments of its handler, or a call of one; or a job of
                ``app.new_job``, for another program or a worker in another language. Of that, ``kwargs`` are the
                members of its payload that are results.
            args: Arguments of the handler.
            kwargs: Arguments of the handler; and ``after``: nodes that it waits for, added before it. ``on_failed``:
                what it does where one of those does not complete: ``cancel``, ``wait``, ``run`` or ``only``.
                ``node``: its name, unique in the
                workflow; that of its type by default, with a number where that is taken. A handler with a parameter of
                one of these names is added as a call.

        Raises:
            Rejected: ``invalid_arguments``; ``workflow_foreign_node``: a node of another workflow;
                ``workflow_name``; ``workflow_too_many``: more than 1,000 results in one argument;
                ``workflow_job_key``, ``workflow_job_unique``. Permanent.
        """
        after, on_failed, node = kwargs.pop("after", ()), kwargs.pop("on_failed", "cancel"), kwargs.pop("node", None)
        made, results, returns = _as_job(self, job, args, kwargs)
        if node is not None and not isinstance(node, str):
            raise Rejected("workflow_name", f"node: a name, not {type(node).__name__}", field="node")
        made.name = self._root.name_for(node or made.task_type, chosen=node is not None)
        made.after, made.on_failed = self.names_of(after), on_failed
        if results:
            made.arguments = results
        if self._inner is not None:
            made.workflow = self._inner.name
        self._check_open()
        self._root.jobs.append(made)
        return Node(self, made, returns)

    def chain(
        self, *steps: Step, after: "Iterable[Dependency]" = (), on_failed: OnFailed = "cancel"
    ) -> list[Node[Any]]:
        """Add jobs of which each waits for the one before it; return their nodes."""
        nodes: list[Node[Any]] = []
        for step in steps:
            nodes.append(self.add(_call_of(step), after=nodes[-1:] or after, on_failed=on_failed))
        return nodes

    def group(
        self,
        steps: Iterable[Step],
        *,
        after: "Iterable[Dependency]" = (),
        on_success: Step | None = None,
        on_failure: Step | None = None,
        on_exhausted: Step | None = None,
    ) -> FlowGroup:
        """Add jobs that can run beside each other; return their nodes.

        Args:
            steps: The jobs.
            after: What each of them waits for.
            on_success: A job that runs when all of them have completed.
            on_failure: A job that runs as soon as one of them has failed or was cancelled.
            on_exhausted: A job that runs when all of them have ended, whichever way.
        """
        first = list(after)
        nodes = [self.add(_call_of(step), after=first) for step in steps]
        wanted: list[tuple[Step | None, OnFailed]] = [
            (on_success, "cancel"), (on_failure, "only"), (on_exhausted, "run"),
        ]  # fmt: skip
        return FlowGroup(nodes, [self.add(_call_of(job), after=nodes, on_failed=how) for job, how in wanted if job])

    def workflow(self, name: str, *, after: "Iterable[Dependency]" = ()) -> "InnerFlow":
        """Return a workflow inside of this one, to be used in a ``with`` block: its end is a node like a job.

        Args:
            name: Unique in the whole workflow.
            after: What its first jobs wait for.
        """
        inner = InnerWorkflow(name=self._root.name_for(name, chosen=True), after=self.names_of(after))
        if self._inner is not None:
            inner.workflow = self._inner.name
        self._root.inner.append(inner)
        return InnerFlow(self._root, inner)

    def names_of(self, nodes: "Iterable[Dependency]") -> list[str]:
        """Return the names of nodes of this workflow; an inner workflow among them takes no further jobs."""
        if not isinstance(cast("object", nodes), Iterable):
            text = f"after: give a list of nodes of this workflow, not {type(nodes).__name__}"
            raise Rejected("workflow_foreign_node", text, field="after")
        names: list[str] = []
        for node in nodes:
            if isinstance(node, FlowGroup):
                names += self.names_of(node)
                continue
            if _root_of(node) is not self._root:
                text = "after: give nodes of this workflow; those of another one are not part of it"
                raise Rejected("workflow_foreign_node", text, field="after")
            if isinstance(node, InnerFlow):
                node._closed = True  # noqa: SLF001  of this module
            names.append(node.name)
        return names

    def id_of(self, name: str) -> int:
        """Return the id of a node of the added workflow."""
        return self._root.id_of(name)

    def _check_open(self) -> None:
        if self._closed:
            text = "this workflow is closed: another job waits for its end, or its block has ended"
            raise Rejected("workflow_closed", text)


class InnerFlow(FlowPart):
    """A workflow inside of another one; a node."""

    def __init__(self, root: "Flow", inner: InnerWorkflow) -> None:
        super().__init__(root, inner)
        self.app, self.name = root.app, inner.name

    @property
    def id(self) -> int:
        """Its id, once the whole is added."""
        return self.id_of(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True


Dependency = Node[Any] | FlowGroup | InnerFlow


class Flow(FlowPart):
    """A workflow that is built in a block; after the block, the handle of the added one."""

    def __init__(
        self, app: "JobCalls", name: str, *, key: str | None, deadline: Duration | None, connection: Any
    ) -> None:
        super().__init__(self, None)
        self.app, self.name = app, name
        self._key, self._deadline, self._connection = key, as_duration("deadline", deadline), connection
        self.jobs: list[WorkflowJob] = []
        self.inner: list[InnerWorkflow] = []
        self._names: Counter[str] = Counter()
        self._id: int | None = None
        self._ids: Mapping[str, int] = {}

    @property
    def id(self) -> int:
        """The id of the workflow, once it is added. Raises ``Unavailable`` (``workflow_not_added``)."""
        if self._id is None:
            raise Unavailable("workflow_not_added", "the workflow is added at the end of its block")
        return self._id

    def id_of(self, name: str) -> int:
        """Return the id of a node of the added workflow."""
        return self._ids[name] if self.id else 0

    def name_for(self, wanted: str, *, chosen: bool) -> str:
        """Return a name for a node; a chosen one that is taken is left to the database to refuse."""
        self._names[wanted] += 1
        return wanted if chosen or self._names[wanted] == 1 else f"{wanted}-{self._names[wanted]}"

    def definition(self) -> WorkflowDefinition:
        """Return what is built so far."""
        deadline = interval_text(self._deadline)
        return WorkflowDefinition(
            name=self.name, jobs=self.jobs, workflows=self.inner, key=self._key, deadline=deadline
        )

    async def result(self, timeout: Duration | None = None) -> None:
        """Wait until the workflow has ended; it has to be committed.

        Raises:
            JobFailed: ``workflow_failed``: a job failed, or its deadline is over. Permanent.
            JobCancelled: ``workflow_cancelled``. Permanent.
            Unavailable: ``result_timeout``: it has not ended yet. Retry. ``app_not_open``.
        """
        await self.app.workflow_result(self.id, timeout=timeout)

    def result_sync(self, timeout: Duration | None = None) -> None:
        """Do what :meth:`result` does in a synchronous program, inside ``with app:``."""
        self.app.run_sync(self.result(timeout))

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if kind is None:
            await self._add(None if self._connection is None else borrow(self._connection))

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if kind is not None:
            return
        if self._connection is None:
            self.app.run_sync(self._add(None))
        else:
            finish(self._add(borrow_sync(self._connection), alone=True))

    async def _add(self, connection: Any, *, alone: bool = False) -> None:
        """Add it; ``alone``: with nothing but the connection, without an event loop."""
        from tickwright.capabilities.jobs.type_catalog import TypeCatalog
        from tickwright.capabilities.jobs.workflows.service import Workflows

        if alone:
            pool: Any = one_connection(connection)
            workflows = Workflows(pool, TypeCatalog(pool), lambda: self.app.settings.payload_keys)
        else:
            workflows = self.app.workflows
        self._id = await workflows.add(self.definition(), connection=connection)
        rows = await workflows.node_ids(self._id, connection=connection)
        self._ids = {row[1]: row[0] for row in rows}


def _root_of(node: Any) -> "Flow | None":
    """Return the outermost workflow that a value is a node of."""
    part = node._flow if isinstance(node, Node) else node  # noqa: SLF001  of this module
    is_node = isinstance(node, Node | InnerFlow)
    return part._root if is_node else None  # noqa: SLF001


def _call_of(step: Step) -> NewJob:
    return step if isinstance(step, NewJob) else step.call()


def _as_job(
    flow: FlowPart, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[WorkflowJob, dict[str, str | list[str]], Any]:
    """Return the job, which of its arguments are results of others, and the type of its own result."""
    if isinstance(job, JobCall):
        if args or kwargs:
            raise Rejected("invalid_arguments", "a call has its arguments already")
        return job_of(job), {}, job.returns
    if isinstance(job, NewJob):
        if args:
            raise Rejected("invalid_arguments", "the payload of this job is in it; give results of nodes by name")
        results, values = _results_in(flow, kwargs)
        if values:
            text = f"{min(values)}: the payload of this job is in it; give results of nodes by name"
            raise Rejected("invalid_arguments", text)
        return job_of(check_new_job(job)), results, Any
    if not isinstance(job, JobOptions):
        text = "add a job of @app.job, a call of one, or a job of app.new_job"
        raise Rejected("invalid_arguments", text)
    bound = job.handler.arguments.bind(args, kwargs)
    results, values = _results_in(flow, bound) if isinstance(bound, dict) else ({}, {"payload": bound})
    for name, value in values.items():
        _check_plain(name, value)
    call: JobCall[Any] = job.call_with(bound, frozenset(results))
    return job_of(call), results, call.returns


def _results_in(flow: FlowPart, given: Mapping[str, Any]) -> tuple[dict[str, str | list[str]], dict[str, Any]]:
    """Return the names of the nodes whose results are arguments, and the other arguments."""
    results: dict[str, str | list[str]] = {}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Node):
            results[name] = flow.names_of([value])[0]
        elif isinstance(value, FlowGroup) or (
            isinstance(value, list | tuple) and value and all(isinstance(one, Node) for one in value)
        ):
            if len(value) > RESULTS_IN_ARGUMENT_MAX:
                text = f"{name}: at most {RESULTS_IN_ARGUMENT_MAX} results; let the job wait for them with after"
                raise Rejected("workflow_too_many", text, field=name)
            results[name] = flow.names_of(value)
        else:
            values[name] = value
    return results, values


def _check_plain(name: str, value: Any) -> None:
    """Refuse a result inside of another value: the database writes results as whole arguments."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else [value]
    if any(isinstance(one, Node | FlowGroup | InnerFlow) for one in inside):
        text = f"{name}: the result of a node is a whole argument, or one of a list that has only results"
        raise Rejected("invalid_arguments", text, field=name)


def check_ended(workflow_id: int, state: str, reason: str | None) -> None:
    """Raise what a workflow ended with, unless it completed."""
    from tickwright.domain.errors import JobCancelled, JobFailed

    if state == "failed":
        why = "its deadline is over" if reason == "deadline" else "a job of it failed"
        raise JobFailed("workflow_failed", f"workflow {workflow_id} failed: {why}", workflow_id=workflow_id)
    if state == "cancelled":
        raise JobCancelled("workflow_cancelled", f"workflow {workflow_id} was cancelled", workflow_id=workflow_id)
