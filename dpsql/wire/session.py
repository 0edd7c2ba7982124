"""One client's session: messages become calls of a `dpsql.gateway.session.Session`, results become messages.

Rule 1: Parse, Bind and Describe never execute: they call `Session.parse` and `Session.describe` only.
Rule 2: a Query and a Sync are answered by exactly one ReadyForQuery, even after an error.
Rule 3: an error is reported once, and fails its transaction.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from dpsql.compiler.sql.statements import CloseStatement, CopyOptions, DeallocateStatement, FetchStatement
from dpsql.errors import (
    Error,
    InvalidSyntax,
    ProtocolViolation,
    UnknownPortal,
    UnsupportedQuery,
)
from dpsql.gateway.cursors import Place
from dpsql.gateway.query_run import Description, Notice, Result, ResultColumn
from dpsql.gateway.response_padding import held_back
from dpsql.gateway.session import Session, Statement
from dpsql.limits.result_memory import block_of
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textinput import read_text
from dpsql.wire.client import Client, Disconnected
from dpsql.wire.copyformat import copy_rows, format_code
from dpsql.wire.messages import backend, frontend
from dpsql.wire.oidtypes import of_column, of_declared, of_oid, of_sql_type
from dpsql.wire.pgtypes import PgType, of_type, spread_formats
from dpsql.wire.portals import (
    Portal,
    PreparedStatement,
    portal_register,
    row_fields,
    statement_register,
)
from dpsql.wire.protocol import IllegalReply, ServerProtocol
from dpsql.wire.report import error_response, notice_response
from dpsql.wire.styles import Style

_CHUNK: Final = 64 << 10
_BATCH: Final = 8192
"""So many values are written at once at most; other clients wait for them."""
_MOST_CHARACTERS: Final = 16 * _CHUNK
"""So many characters of texts are written at once at most, unless one row has more."""
_ELEMENT: Final = 16
"""An element of an array takes as long to write as so many characters."""
_FEW_ROWS: Final = 10
"""So many rows are written one by one, which takes less time than to put their columns together."""
_FIRST_ROWS: Final = 64
"""So many rows are written first; the next batches have as many as fit a chunk, going by the bytes of the last."""
_FORGETS_STATEMENTS: Final = ("DEALLOCATE ALL", "DISCARD ALL")


class WireSession:
    """Answers the messages of a client that has logged in, one at a time.

    Args:
        protocol: The connection's state machine, in state READY or later.
        session: The SQL session; one call at a time is made, by way of `client.call`.
        client: Where replies go, and where blocking calls are made.
        max_names: How many prepared statements, and how many portals, there may be.
    """

    def __init__(self, protocol: ServerProtocol, session: Session, client: Client, max_names: int = 1000) -> None:
        self._protocol = protocol
        self._session = session
        self._client = client
        self._statements = statement_register(max_names)
        self._portals = portal_register(max_names)
        self._pending = bytearray()
        self._in_exchange = False

    async def handle(self, message: frontend.FrontendMessage) -> None:
        """Reply to one message.

        Raises:
            Disconnected: If the client went away.
            IllegalReply: If a reply would break the protocol: the connection must end.
        """
        try:
            await self._dispatch(message)
        except (Disconnected, IllegalReply):
            raise
        except Exception as error:
            self._session.fail()
            for text in error.notices if isinstance(error, Error) else ():
                self._send(notice_response(Notice(text)))
            self._send(error_response(error))
            await self._flush()
        if isinstance(message, frontend.Query | frontend.FunctionCall | frontend.Sync):
            await self._ready()

    async def _dispatch(self, message: frontend.FrontendMessage) -> None:
        match message:
            case frontend.Query():
                await self._query(message)
            case frontend.Parse():
                await self._parse(message)
            case frontend.Bind():
                await self._bind(message)
            case frontend.Describe():
                self._describe(message)
            case frontend.Execute():
                await self._execute(message)
            case frontend.Close():
                (self._statements if message.kind == b"S" else self._portals).discard(message.name)
                self._send(backend.CloseComplete())
            case frontend.Flush():
                await self._flush()
            case frontend.FunctionCall():
                raise UnsupportedQuery("function calls by OID are not supported", hint="Use SELECT.")

    async def _query(self, message: frontend.Query) -> None:
        """Run the statements of a simple query up to the first that fails."""
        self._statements.discard(b"")
        self._portals.discard(b"")
        sql = read_text(message.sql)
        statements = await self._client.call(partial(self._session.parse, sql))
        if not statements:
            self._send(backend.EmptyQueryResponse())
        self._begin(several=len(statements) > 1)
        for statement in statements:
            result = await self._run(statement, ())
            if result.copy is not None:
                await self._send_copy(result, result.copy)
            elif result.columns is not None:
                formats = spread_formats((), len(result.columns))
                self._send(backend.RowDescription(row_fields(result.columns, formats)))
                await self._send_rows(result.columns, formats, result.rows)
            self._complete(result.tag)

    async def _parse(self, message: frontend.Parse) -> None:
        self._statements.check_free(message.statement)
        declared = tuple(map(of_declared, message.parameter_oids))
        sql = read_text(message.sql)
        age = self._age
        statement, description = await self._client.call(partial(self._prepare, sql, declared))
        parameters = _parameter_types(declared, description)
        prepared = PreparedStatement(statement, parameters, description, age)
        self._statements.add(message.statement, prepared)
        self._send(backend.ParseComplete())

    def _prepare(self, sql: str, declared: Sequence[PgType | None]) -> tuple[Statement | None, Description]:
        """Return the one statement of a text and its description; pure, but for the time it takes."""
        statements = self._session.parse(sql)
        if not statements:
            return None, Description((), None)
        if len(statements) > 1:
            raise InvalidSyntax("cannot insert multiple commands into a prepared statement")
        types = tuple(None if kind is None else kind.type for kind in declared)
        return statements[0], self._session.describe(statements[0], types)

    async def _bind(self, message: frontend.Bind) -> None:
        prepared = self._statements[message.statement]
        self._portals.check_free(message.portal)
        if len(message.parameters) != len(prepared.parameters):
            raise ProtocolViolation(
                f"bind message supplies {len(message.parameters)} parameters, "
                f"but the prepared statement requires {len(prepared.parameters)}"
            )
        formats = spread_formats(message.parameter_formats, len(message.parameters))
        values = tuple(
            None if raw is None else kind.read[code](raw)
            for kind, code, raw in zip(prepared.parameters, formats, message.parameters, strict=True)
        )
        columns = prepared.description.columns
        results = spread_formats(message.result_formats, len(columns or ()))
        used = values[: len(prepared.description.parameters)]
        self._portals.add(message.portal, Portal(prepared, used, results))
        self._send(backend.BindComplete())

    def _describe(self, message: frontend.Describe) -> None:
        """Say the shape of a result as it was when the statement was prepared: it cannot have another."""
        if message.kind == b"S":
            prepared = self._statements[message.name]
            self._send(backend.ParameterDescription(tuple(kind.oid for kind in prepared.parameters)))
            columns = prepared.description.columns
            formats = spread_formats((), len(columns or ()))
        elif message.name in self._portals:
            portal = self._portals[message.name]
            columns, formats = portal.prepared.description.columns, portal.formats
        else:  # a cursor that SQL has declared is a portal too
            columns = self._session.describe_cursor(read_text(message.name))
            formats = spread_formats((), len(columns))
        self._send(backend.NoData() if columns is None else backend.RowDescription(row_fields(columns, formats)))

    async def _execute(self, message: frontend.Execute) -> None:
        self._begin()
        portal = self._portals[message.portal]
        statement = portal.prepared.statement
        if statement is None:
            self._send(backend.EmptyQueryResponse())
            return
        if portal.result is not None and _row_columns(portal.result) is None:
            raise UnknownPortal("portal has already been run", hint="Bind the statement again.")
        await self._send_portal(portal, await self._result(portal, statement), message.max_rows)

    async def _result(self, portal: Portal, statement: Statement) -> Result:
        """Return a portal's result; the first time, the statement is run."""
        if portal.result is None:
            if portal.running:
                raise UnsupportedQuery("a portal cannot fetch from itself")
            await self._check_shape(portal, statement)
            types = tuple(kind.type for kind in portal.prepared.parameters)
            portal.running = True
            try:
                portal.result = await self._run(statement, portal.parameters, types)
            finally:
                portal.running = False
            _check_columns(portal.prepared.description, _row_columns(portal.result))
        return portal.result

    async def _send_portal(self, portal: Portal, result: Result, max_rows: int) -> None:
        if result.copy is not None:
            await self._send_copy(result, result.copy)
        if result.copy is not None or result.columns is None:
            self._complete(result.tag)
            return
        batch = portal.take(result, max_rows)
        await self._send_rows(result.columns, portal.formats, batch)
        if max_rows > 0 and len(batch) == max_rows:
            # As PostgreSQL: that this was the last row shows only when one more is asked for.
            self._send(backend.PortalSuspended())
        else:
            self._complete(_counted(result.tag, len(batch)))

    async def _check_shape(self, portal: Portal, statement: Statement) -> None:
        """Refuse, before anything is charged, a statement that a setting or a policy has given another shape."""
        if portal.prepared.age == self._age:
            return
        types = tuple(kind.type for kind in portal.prepared.parameters)
        description = await self._client.call(partial(self._session.describe, statement, types))
        _check_columns(portal.prepared.description, description.columns)

    async def _run(self, statement: Statement, parameters: Sequence[object], types: Sequence[SqlType] = ()) -> Result:
        """Return a statement's result; its notices and changed settings are on their way to the client."""
        named = self._deallocate(statement) or await self._move(statement)
        if named is not None:
            return named
        begun = time.monotonic()
        try:
            result = await self._answer(statement, parameters, types)
        except Exception:  # whoever is gone is not waited for
            await self._pad(begun)
            raise
        await self._pad(begun)
        for notice in result.notices:
            self._send(notice_response(notice))
        for name, value in result.parameters:
            self._send(backend.ParameterStatus(name, value))
        if result.tag in _FORGETS_STATEMENTS:
            self._statements.clear()
        return result

    async def _answer(self, statement: Statement, parameters: Sequence[object], types: Sequence[SqlType]) -> Result:
        """Run a statement in another thread, unless memory answers it sooner than threads change."""
        known = self._session.recall(statement, parameters, types)
        if known is None:
            return await self._client.call(partial(self._session.execute, statement, parameters, types))
        await asyncio.sleep(0)  # a client that sends many such statements ahead takes turns with the others
        return known

    @property
    def _age(self) -> tuple[int, int]:
        """What a description may be too old for: how often settings have changed, and policies."""
        return self._session.changes, self._session.generation

    async def _pad(self, begun: float) -> None:
        """Wait until the reply's time is a multiple of the quantum: how long a statement took is not for the client."""
        wait = held_back(time.monotonic() - begun, self._session.reply_quantum)
        if wait > 0:
            await asyncio.sleep(wait)

    def _deallocate(self, statement: Statement) -> Result | None:
        """Forget what SQL deallocates by name: drivers deallocate by SQL what they have prepared by Parse."""
        parsed = statement.parsed
        if not isinstance(parsed, DeallocateStatement) or parsed.name is None or self._session.transaction == "E":
            return None
        name = parsed.name.encode()
        if name not in self._statements:
            return None
        self._statements.discard(name)
        return Result("DEALLOCATE")

    async def _move(self, statement: Statement) -> Result | None:
        """Fetch from, move in or close what SQL names and the protocol has opened: a portal is a cursor."""
        parsed = statement.parsed
        if not isinstance(parsed, FetchStatement | CloseStatement) or parsed.name is None:
            return None
        name = parsed.name.encode()
        if name not in self._portals or self._session.transaction == "E":
            return None
        if isinstance(parsed, CloseStatement):
            self._portals.discard(name)
            return Result("CLOSE CURSOR")
        portal = self._portals[name]
        if portal.prepared.statement is None or portal.prepared.description.columns is None:
            raise UnknownPortal(f'portal "{parsed.name}" returns no rows')
        result = await self._result(portal, portal.prepared.statement)
        place = Place(result.rows, portal.sent)
        rows = place.read(parsed.direction, parsed.count)
        portal.sent = min(place.at, len(result.rows))
        if parsed.move:
            return Result(f"MOVE {len(rows)}")
        return Result(f"FETCH {len(rows)}", result.columns, rows)

    async def _send_copy(self, result: Result, options: CopyOptions) -> None:
        columns = result.columns or ()
        self._send(backend.CopyOutResponse(format_code(options), len(columns)))
        for data in copy_rows(options, columns, result.rows, Style.of(self._session.output_settings)):
            self._send(backend.CopyRow(data))
            await self._breathe()
        self._send(backend.CopyEnd())

    async def _breathe(self) -> None:
        """Send on what has piled up; writing may not have to wait at all, and others get their turn all the same."""
        if len(self._pending) >= _CHUNK:
            await self._flush()
            await asyncio.sleep(0)

    async def _send_rows(
        self, columns: Sequence[ResultColumn], formats: Sequence[int], rows: Sequence[tuple[object, ...]]
    ) -> None:
        style = Style.of(self._session.output_settings)
        kinds = [of_column(column, style) for column in columns]
        if len(rows) <= _FEW_ROWS:
            for row in rows:
                fields = zip(kinds, formats, row, strict=True)
                values = tuple(None if value is None else kind.write[code](value) for kind, code, value in fields)
                self._send(backend.DataRow(values))
                await self._breathe()
            return
        most = max(_BATCH // max(len(columns), 1), 1)
        start, size = 0, min(_FIRST_ROWS, most)
        while start < len(rows):
            block = block_of(rows, start, start + size)
            characters = sum(map(_characters, block.columns))
            if characters > _MOST_CHARACTERS and block.count > 1:  # its rows are longer than those before
                size = max(block.count * _MOST_CHARACTERS // characters, 1)
                continue
            by_column = zip(kinds, formats, block.columns, strict=True)
            written = [kind.column(code, values) for kind, code, values in by_column]
            data = self._protocol.send_rows(written, block.count)
            self._pending += data
            start += block.count
            size = min(max(_CHUNK * block.count // len(data), 1), most)
            await self._breathe()

    def _complete(self, tag: str) -> None:
        self._send(backend.CommandComplete(tag) if tag else backend.EmptyQueryResponse())

    def _begin(self, *, several: bool = False) -> None:
        """From here to ReadyForQuery everything is one transaction, as in PostgreSQL."""
        if not self._in_exchange:
            self._in_exchange = True
            self._session.begin_implicit(several=several)

    async def _ready(self) -> None:
        if self._in_exchange:
            self._in_exchange = False
            for name, value in self._session.end_implicit():
                self._send(backend.ParameterStatus(name, value))
        status = self._session.transaction
        if status == "I":
            # No portal outlives its transaction.
            self._portals.clear()
        self._send(backend.ReadyForQuery(status))
        await self._flush()

    def _send(self, message: backend.BackendMessage) -> None:
        self._pending += self._protocol.send(message)

    async def _flush(self) -> None:
        if self._pending:
            data = bytes(self._pending)
            self._pending.clear()
            await self._client.write(data)


def _parameter_types(declared: Sequence[PgType | None], description: Description) -> tuple[PgType, ...]:
    """Return each parameter's type on the wire: the declared one, else that of the description, else text."""
    inferred = list(
        map(of_oid, description.parameter_oids)
        if description.parameter_oids
        else map(of_sql_type, description.parameters)
    )
    for index, element in enumerate(description.elements):
        if element is not None:
            inferred[index] = of_sql_type(element.array)
    inferred += [of_type(SqlType.TEXT)] * (len(declared) - len(inferred))
    padded = [*declared, *[None] * (len(inferred) - len(declared))]
    return tuple(kind or other for kind, other in zip(padded, inferred, strict=True))


def _check_columns(description: Description, columns: Sequence[ResultColumn] | None) -> None:
    """Refuse a result that differs from Describe: the client would misread its bytes."""
    told = None if description.columns is None else [of_column(column).oid for column in description.columns]
    if told != (None if columns is None else [of_column(column).oid for column in columns]):
        raise UnsupportedQuery(
            "cached plan must not change result type",
            hint="A setting or the policy has changed the columns of this statement: prepare it again.",
        )


def _row_columns(result: Result) -> Sequence[ResultColumn] | None:
    """Return the columns of the rows that a client is told of; what COPY sends is told by CopyOutResponse."""
    return None if result.copy is not None else result.columns


def _characters(column: Sequence[Any]) -> int:
    """The characters or bytes of a column's values, if these may be long, and what the elements of arrays take."""
    match next(filter(None, column), None):
        case str() | bytes():
            return sum(map(len, filter(None, column)))
        case list() | tuple():
            return sum(_ELEMENT * len(array) + _characters(array) for array in filter(None, column))
        case _:
            return 0


def _counted(tag: str, rows: int) -> str:
    """Return a tag with the number of rows sent by this Execute in place of the number of all rows."""
    name, _, count = tag.rpartition(" ")
    return f"{name} {rows}" if count.isdigit() else tag
