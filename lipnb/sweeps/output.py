"""What an executed notebook keeps of the output of a point: up to a limit, and it says where it was cut.

A point can print without end, and the client that gathers the messages of all kernels must stay able to answer.
Streams are joined as they come and only their last line is looked at again, so the work grows with what is printed.
"""

from nbclient import NotebookClient

from lipnb.sweeps.recorded import MIME

__all__ = ["LIMIT", "RECORDED", "Client"]

LIMIT = 1_000_000  # characters of output that a point keeps
RECORDED = 1_000_000  # characters of recorded values, which come on top: they are never cut
PIECE = 50_000  # characters of a stream after which another piece of output begins: long texts are not copied again
WORDS = 20_000  # characters of an error's traceback
DISPLAYS = ("display_data", "execute_result", "update_display_data")


class Client(NotebookClient):
    """nbclient's client, which keeps no more of a point's output than the limit.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        What is executed.
    stopped : callable
        Whether the point was stopped.
    limit : int
        Characters that are kept.
    **options
        Of nbclient's client.
    """

    def __init__(self, notebook, *, stopped, limit=LIMIT, **options):
        super().__init__(notebook, **options)
        self._stopped, self._limit = stopped, limit
        self._used, self._cells, self._sizes, self._recorded = 0, {}, {}, 0
        self._cut = set()  # cells in which it was said

    def process_message(self, msg, cell, cell_index):
        """Take one message of the kernel, or what there is room for of it."""
        kind, content = msg["msg_type"], msg["content"]
        if self._stopped() and kind != "status":
            return None  # a kernel that was killed can leave many words behind
        if kind == "clear_output":  # an animation keeps its last picture only
            self._used -= self._cells.pop(cell_index, 0)
            self._cut.discard(cell_index)
        elif kind in DISPLAYS and not self._room_for_display(content, cell_index):
            if cell_index in self._cut:
                return None
            self._cut.add(cell_index)
            content.update(data={"text/plain": self._sentence()}, metadata={})
        elif kind == "error":
            content.update(evalue=content["evalue"][:WORDS], traceback=_shortened(content["traceback"]))
        elif kind.startswith("comm") and not self._room(_size(content), cell_index, _place(content)):
            return None
        return super().process_message(msg, cell, cell_index)

    def output(self, outs, msg, display_id, cell_index):
        """Keep one output; a stream goes on where it was, and is cut where the room ends."""
        content = msg["content"]
        if msg["msg_type"] != "stream":
            return super().output(outs, msg, display_id, cell_index)
        last = None if self.clear_before_next_output or not outs else outs[-1]
        if last is not None and not (
            last["output_type"] == "stream" and last["name"] == content["name"] and len(last["text"]) < PIECE
        ):
            last = None
        before = "" if last is None else last["text"]
        text = _tidy(before, content["text"])
        if not self._room(len(text) - len(before), cell_index):
            if cell_index in self._cut:
                return None
            left = self._limit - self._used
            self._room(left, cell_index)
            self._cut.add(cell_index)
            text = f"{text[: len(before) + left]}\n{self._sentence()}\n"
        if last is not None:
            last["text"] = text
            return None
        content["text"] = text
        return super().output(outs, msg, display_id, cell_index)

    def _room_for_display(self, content, cell_index):
        """Count a display; an update counts what it adds to the largest one before."""
        data = content.get("data", {})
        if MIME in data:
            self._recorded += _size(data[MIME])
            if self._recorded > RECORDED:
                raise ValueError(f"the values that it records have more than {RECORDED:,} characters")
            return True
        name = (content.get("transient") or {}).get("display_id")
        return self._room(_size(data), cell_index, name)

    def _room(self, size, cell_index, name=None):
        """Whether there is room for `size` more characters, which are then taken."""
        old = self._sizes.get(name, 0)
        size = size if name is None else max(0, size - old)
        if self._used + size > self._limit:
            return False
        if name is not None:
            self._sizes[name] = old + size
        self._used += size
        self._cells[cell_index] = self._cells.get(cell_index, 0) + size
        return True

    def _sentence(self):
        return f"[cut here: a sweep keeps {self._limit:,} characters of the output of a point]"


def _tidy(before, text):
    """A stream with `text` added: of a line written over with carriage returns, as by progress bars, the last state."""
    start = before.rfind("\n") + 1
    if "\r" not in text and not before.endswith("\r"):
        return before + text
    lines = (before[start:] + text).replace("\r\n", "\n").split("\n")
    kept = [line.rstrip("\r")[line.rstrip("\r").rfind("\r") + 1 :] for line in lines]
    if lines[-1].endswith("\r"):  # the next text may write over it
        kept[-1] += "\r"
    return before[:start] + "\n".join(kept)


def _size(value):
    """Characters of a value, roughly: those of its texts and one for each number."""
    total, todo = 0, [value]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            todo += value
        total += len(value) if isinstance(value, str | bytes) else 1
    return total


def _place(content):
    """What of a widget a message sets: setting it again costs nothing."""
    state = (content.get("data") or {}).get("state") or {}
    return (content.get("comm_id"), *sorted(map(str, state))) if isinstance(state, dict) else content.get("comm_id")


def _shortened(traceback):
    """The first and the last words of a traceback that is long."""
    if sum(map(len, traceback)) <= WORDS:
        return traceback
    text = "\n".join(
        line if len(line) <= WORDS else f"{line[: WORDS // 4]} ... {line[-WORDS // 4 :]}"
        for line in [*traceback[:20], *traceback[20:][-20:]]
    )
    return [f"{text[: WORDS // 2]}\n[cut here: the traceback is long]\n{text[-WORDS // 2 :]}"]
