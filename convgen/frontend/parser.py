"""Text to syntax tree, by lark's LALR parser, with every syntax error of the file.

An error is reported, then repaired where one word is enough: a missing, extra or wrong sign, a setting under another
project's name, a brace.  What cannot be repaired is lost: the parser drops the current statement and continues with the
next one.  Blocks are checked as far as that does not need what was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy

from lark import Token, Tree, UnexpectedToken

from convgen import habits
from convgen.diagnostics import Report
from convgen.frontend import ast, hints, lost, wording
from convgen.frontend.build import Build, span_of
from convgen.frontend.dims import DYNAMIC_DIMS
from convgen.frontend.lost import Region
from convgen.frontend.operators import OPERATORS
from convgen.frontend.place import Place, setting_meant
from convgen.frontend.tokens import COMMENT, END, MIXED, STRAY, TEXTS, grammar, meant, tokens
from convgen.ir.problem import Padding


def parse(text: str, report: Report) -> ast.Spec:
    """The tree of what parses; what does not is in the report."""
    return _Parse(text, report).run()


#: What people leave out, the likeliest first.
_FORGOTTEN = ("COMMA", "COLON", "ASSIGN", "LET", "OPERAND", "LBRACE", "RSQB", "RPAR")
#: What people take for one another.
_MISTAKEN = {"COLON": "ASSIGN", "ASSIGN": "COLON", "COMPARE": "ASSIGN"}
#: A mended text has to go on for so many words.
_AHEAD = 3
_UNREAD = ast.Spec((), (), frozenset(), whole=False)
_FILLS = frozenset(map(str, Padding))
_CONV = "write `conv NAME { input ... filter ... output ... }`"
#: A file is not read beyond so many statements that are lost before one is found, as it is probably no spec; nor beyond
#: so many errors.
_FEW, _MOST = 3, 50


class _Parse:
    """One parse: feeds words to lark's parser, and after an error finds out how to go on."""

    def __init__(self, text: str, report: Report) -> None:
        self._report = report
        self._words = tokens(text)
        self._parser = grammar().parse_interactive("")
        self._regions: list[Region] = []
        self._mended: list[Token] = []
        self._whole = True  # whether there was no error
        self._unclosed: list[Token] = []  # braces
        self._said: set[tuple[int, str]] = set()  # by line: one message does for all commas that it lacks

    def run(self) -> ast.Spec:
        at, keyword = 0, ""
        while not self._gives_up(at):
            word = self._words[at]
            if self._begins_unseen(at, keyword):
                at, keyword = self._behind_fault(at, unseen=True), ""
                continue
            try:
                tree = self._parser.feed_token(word)
            except UnexpectedToken:
                at = self._behind_fault(at)
                continue
            keyword = word.value if word.value in wording.KEYWORDS or word.type == "DYNAMIC" else keyword
            if word.type == END:
                return self._spec(tree)
            at += 1
        return _UNREAD

    def _spec(self, tree: Tree) -> ast.Spec:
        items = Build(self._report).transform(tree).children
        if self._whole and not any(w.type == "CONV" for w in self._words):
            self._report.error("E007", "the file has no conv block", None, _CONV)
        return lost.mark(items, self._regions, self._mended, self._unclosed) if self._whole or items else _UNREAD

    # what is wrong

    def _gives_up(self, at: int) -> bool:
        """Whether a file has too many errors to read it from a word on, which is then reported."""
        word, errors = self._words[at], len(self._report)
        lost = not self._values and len(self._regions) >= _FEW
        if word.type == END or not (lost or errors >= _MOST):
            return False
        message = f"the rest of the file is not read, after {errors} errors{' and no statement' * lost}"
        self._report.error("E002", message, span_of(word), _CONV if lost else None)
        return True

    def _begins_unseen(self, at: int, keyword: str) -> bool:
        """Whether a word begins a line that the grammar takes for more of the statement with the keyword, or a setting
        that it takes for what padding is made of, or an assignment that it takes for a dim."""
        if self._words[at].type != "NAME":
            return False
        place = Place(self._words, at, frozenset(), ())
        if place.before == "[" and place.begins_line and place.is_assigned and not place.is_closed:
            return True
        other_name = habits.plain(place.word) in habits.SETTINGS
        fill = place.word in _FILLS or (not other_name and habits.meant(place.word, tuple(Padding), habits.FILLS))
        alone = place.begins_line and (place.ends_line or place.word in OPERATORS) and not place.is_assigned
        meant = place.begins_line and place.is_assigned and setting_meant(place.word) is not None
        another = place.is_followed_by_value or alone or meant
        if keyword == "pad" and place.is_behind_value and another and not fill:
            return True
        opens = place.opens_block and keyword != "strategy"
        if not (place.begins_line and (place.is_followed_by_value or opens)) or len(self._open_braces()) != 1:
            return False
        if keyword == "dynamic" and place.word in DYNAMIC_DIMS:
            return False
        operator = place.word in OPERATORS or habits.meant(place.word, OPERATORS, habits.OPS)
        return keyword != "op" or other_name or not operator

    def _behind_fault(self, at: int, unseen: bool = False) -> int:
        """Like `_fault`, but skips the word if nothing has changed: it would fail again, forever."""
        word, known = self._words[at], len(self._values)
        resumed = self._fault(at, unseen)
        return resumed + (resumed == at and self._words[at] is word and len(self._values) == known)

    def _fault(self, at: int, unseen: bool = False) -> int:
        """Reports the error at a word and mends or drops what it can; the place of the word to go on with.

        `unseen` words could be part of the statement at hand, but are not meant so."""
        self._whole = False
        kinds = frozenset(self._parser.accepts())
        kinds = (kinds - {"NAME", "COMMA"} if unseen else kinds) or kinds
        place = Place(self._words, at, kinds, tuple(self._values[i] for i in self._open_braces()))
        word = self._words[at]
        if place.is_let_in_block:
            return self._let_in_block(at, place)
        if place.is_input_of_epilogue:
            write = f"write `operand {place.rest_of_line()}`"
            self._report.error("E002", "a tensor that an epilogue reads is an operand", span_of(word), write)
            self._words[at] = Token.new_borrow_pos("OPERAND", "operand", word)
            return at
        if "RBRACE" in place.kinds and place.is_behind_block:
            message = f"`{{` is not closed: expected `}}` before {wording.found(word)}"
            message += f" in line {word.line}" if word.type != END else ""
            brace = place.braces[-1]
            first = next(i for i, w in enumerate(self._words) if w is brace)
            braces = [w for w in self._words[first:at] if w.type == "LBRACE"]
            if all(map(_is_in_text, braces)):  # else what closes it was taken for one that was put in
                self._report.error("E003", message, span_of(brace))
                self._unclosed.append(brace)
            self._words.insert(at, self._made("RBRACE", at))
            return at
        is_stray = word.type in (STRAY, COMMENT)
        message, span, hint = hints.explain_stray(place) if is_stray else hints.explain(place)
        resume = at + 2 if place.is_operand_of_block else at + place.is_keyword_as_name
        mended = self._mend(at, place)
        said = (span.line, (hint or str(word)) if is_stray else mended or str(word))
        if mended and place.is_keyword_for_name:
            said = (0, mended)  # a name that is declared is also read
        if said not in self._said:
            self._report.error("E001" if is_stray else "E002", message, span, hint)
        if mended or is_stray:
            self._said.add(said)
        if mended:
            self._mended.append(word)
        return at if mended else self._resume(at, resume)

    def _let_in_block(self, at: int, place: Place) -> int:
        """Reports a `let` in a block, and goes on without the word or, where no names are assigned, the statement."""
        if place.in_epilogue:
            hint = f"write `{place.rest_of_line(1)}`"
            self._report.error("E002", "names of epilogues and prologues need no `let`", span_of(place.word), hint)
            del self._words[at]
            return at
        hint = "write it in front of the conv block"
        self._report.error("E002", "a `let` cannot stand in a conv block", span_of(place.word), hint)
        return self._resume(at, at + 1)

    # mending

    def _mend(self, at: int, place: Place) -> str:
        """Changes the words so that the text goes on, and says how; empty where that fails."""
        words = self._words
        if place.word.type == COMMENT or meant(place.word) == ("", ""):
            del words[at]
            return f"without {place.word}"
        ahead = self._ahead(at)
        for replaced in self._replacements(place):
            if self._goes_on([*replaced, *self._ahead(at + 1)]):
                words[at : at + 1] = replaced
                return f"{place.word} as {' '.join(replaced)}"
        if place.is_setting and (keyword := place.keyword_meant) and words[at + 1].type in ("ASSIGN", "COLON"):
            named = Token.new_borrow_pos(keyword.upper(), keyword, place.word)
            if self._goes_on([named, *self._ahead(at + 2)]):
                words[at : at + 1 + (keyword not in wording.TENSORS)] = [named]  # a tensor's sign is the next fault
                return f"{place.word} as {keyword}"
        for kind in _FORGOTTEN:
            sign = self._made(kind, at)
            if place.lacks(kind) and self._goes_on([sign, *ahead]):
                words.insert(at, sign)
                return f"with {sign}"
        values = self._values
        last_comma = values and isinstance(values[-1], Token) and values[-1].type == "COMMA"
        if last_comma and place.keyword not in wording.AXES and self._goes_on(ahead, less=1):
            self._cut(len(values) - 1)
            return "without the last comma"
        return ""

    def _replacements(self, place: Place) -> Iterator[list[Token]]:
        """Possible replacements of a word, the likeliest first."""
        word = place.word
        if sign := meant(word):
            yield [Token.new_borrow_pos(*sign, word)]
        if word.type == STRAY and not word[0].isalnum():  # in place of a sign
            lacking = Place(self._words, place.at + 1, place.kinds, place.braces).lacks
            signs = (kind for kind in _FORGOTTEN if not TEXTS[kind].isalpha() and lacking(kind))
            yield from ([_instead(word, sign)] for sign in signs)
        if word.type == "COMMA" and "LET" in place.kinds:
            yield [_instead(word, "LET")]
        if bracket := place.bracket_meant:
            yield [_instead(word, bracket)]
        if place.is_too_much or place.separates_assignments or (word.type == "RBRACE" and not place.braces):
            yield []
        if word.type == "COLON" and place.kinds == {"LBRACE"}:
            yield [self._made("LBRACE", place.at)]
        if word.type in _MISTAKEN and (word.type != "COMPARE" or word == "=="):
            yield [_instead(word, _MISTAKEN[word.type])]
        if keyword := place.keyword_meant:
            yield [Token.new_borrow_pos(keyword.upper(), keyword, word)]
        if (place.declares and word.type in (MIXED, STRAY) and word[0].isalnum()) or place.is_keyword_for_name:
            yield [Token.new_borrow_pos("NAME", str(word), word)]

    def _ahead(self, at: int) -> list[Token]:
        """Some words from a place on in its line, as they will be where strays are mended."""
        found: list[Token] = []
        for word in self._words[at : at + 4 * _AHEAD]:
            if found and word.line != found[0].line:
                break
            sign = meant(word)
            if not found and (keyword := Place(self._words, at, frozenset(), ()).setting_of_line):
                found.append(Token.new_borrow_pos(keyword.upper(), keyword, word))
            elif sign is None and word.type != COMMENT:
                found.append(word)
            elif sign and sign[0]:
                found.append(Token.new_borrow_pos(*sign, word))
        return found[:_AHEAD]

    def _goes_on(self, words: Sequence[Token], less: int = 0) -> bool:
        """Whether the parser takes the words, as it is or without as many of those that it has taken last."""
        trial = self._parser.copy(deepcopy_values=False)
        state = trial.parser_state
        state.parse_conf = copy(state.parse_conf)
        state.parse_conf.callbacks = {}  # which build trees
        if less:
            del state.value_stack[-less:], state.state_stack[-less:]
        try:
            for word in words:
                trial.feed_token(word)
        except UnexpectedToken:
            return False
        return True

    def _made(self, kind: str, at: int) -> Token:
        """Makes a word that is not in the text, placed after the word before a position."""
        text = TEXTS[kind]
        if at == 0:
            return Token(kind, text, 0, 1, 1, 1, 1, 0)
        before = self._words[at - 1]
        end = before.end_line, before.end_column
        return Token(kind, text, before.end_pos, *end, *end, before.end_pos)

    # where to go on

    @property
    def _values(self) -> list:
        """The parser's stack: words and trees of incomplete statements."""
        return self._parser.parser_state.value_stack

    def _open_braces(self) -> list[int]:
        """Where on the stack the blocks that are not closed begin."""
        opened = []
        for i, value in enumerate(self._values):
            if isinstance(value, Token) and value.type == "LBRACE":
                opened.append(i)
            elif isinstance(value, Token) and value.type == "RBRACE":
                opened.pop()
        return opened

    def _resume(self, fault: int, at: int) -> int:
        """Drops the statement with the fault; the place, not before `at`, of the word to go on with."""
        dropped = self._drop()
        level = len(self._open_braces())
        lost = [*dropped, *self._words[fault:at]]
        opened: Counter[str] = Counter(lost)  # braces are counted from here on alone
        braces = 0
        for i in range(at, len(self._words)):
            word, place = self._words[i], Place(self._words, i, frozenset(), ())
            again = i > fault or (bool(dropped) and place.begins_line)  # else it is the fault itself
            if place.begins_item or (not braces and self._begins(place, level, opened, again)):
                break
            braces = max(braces + (word == "{") - (word == "}"), 0)
            opened[word] += 1
            lost.append(word)
            if level and word.type in (STRAY, COMMENT) and word.line != self._words[fault].line:
                self._report.error("E001", *hints.explain_stray(place))
        if lost:
            self._regions.append(Region(tuple(lost)))
        if not level and word.type in ("LBRACE", *wording.SETTING_KINDS):
            self._words[i:i] = self._header(lost, i)
        return i

    def _begins(self, place: Place, level: int, lost: Counter[str], again: bool) -> bool:
        """Whether a word begins a statement of the current block, ends the block, or follows it.

        `lost` counts the words before it that are; `again`: it would be looked at in another light."""
        word = place.word
        if not level:
            in_block = word.type == "LBRACE" or word.type in wording.SETTING_KINDS
            return ("conv" in lost and in_block) or (again and place.begins_line and place.looks_like_item)
        if word.type in ("RBRACE", "PROLOGUE", "DYNAMIC") or word.type in wording.SETTING_KINDS:
            return True
        closed = lost["("] <= lost[")"] and lost["["] <= lost["]"]
        begins = word.type == "NAME" and place.begins_line
        if level > 1:
            declares = word.type in ("OPERAND", "RESULT")
            fits = (declares or begins) and self._goes_on(self._words[place.at : place.at + 2])
            return fits or (again and begins and closed and place.is_behind_value)
        if place.is_assigned and not any(lost[keyword] for keyword in wording.AXES):
            return again and begins and closed
        return again and place.looks_like_setting and (closed or place.is_known_line)

    def _header(self, words: Sequence[Token], at: int) -> list[Token]:
        """The header of a conv block, made from words that do not form one, for the block that begins at a place."""
        conv = next(i for i, w in enumerate(words) if w.type == "CONV")
        named = [w for w in words[conv + 1 :] if w.type != "STRAY"] or words[conv : conv + 1]
        made = [words[conv], Token.new_borrow_pos("NAME", named[0][:32], named[0])]
        return made if self._words[at].type == "LBRACE" else [*made, self._made("LBRACE", at)]

    def _drop(self) -> list[Token]:
        """Drops everything on the stack after the current block's last complete statement, and returns its words."""
        braces = self._open_braces()
        behind = Token("RBRACE" if braces else "CONV", "")
        if self._goes_on([behind]):  # the last statement is complete, but nothing has told the parser so
            self._parser.feed_token(behind)
            self._cut(len(self._values) - 1)
        keep = braces[-1] + 1 if braces else 0
        if keep < len(self._values) and isinstance(self._values[keep], Tree):
            keep += 1  # the statements so far
        dropped = _words(self._values[keep:])
        self._cut(keep)
        return dropped

    def _cut(self, keep: int) -> None:
        del self._values[keep:]
        del self._parser.parser_state.state_stack[keep + 1 :]


def _words(parts: Sequence[Token | Tree[Token]]) -> list[Token]:
    """The words of parts of lark's tree, in the order of the text.  The tree of a long sum is deeper than Python may
    recurse."""
    found, pending = [], list(reversed(parts))
    while pending:
        part = pending.pop()
        if isinstance(part, Tree):
            pending += reversed(part.children)
        else:
            found.append(part)
    return found


def _instead(word: Token, kind: str) -> Token:
    """A word of this kind in place of another."""
    return Token.new_borrow_pos(kind, TEXTS[kind], word)


def _is_in_text(word: Token) -> bool:
    """Whether it is in the text."""
    return word.start_pos != word.end_pos
