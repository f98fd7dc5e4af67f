"""Texts, two tokenizers, their alignment, and two models: ``python prepare.py`` writes ``data/``.

The texts are Python's own: its help pages and the sources of its standard library. Teacher and student each
have a tokenizer of their own, trained on them. A row is a piece of text as the student reads it and as the
teacher reads it, with the teacher's place that ends at the same letter as each place of the student.
"""

import itertools
import os
import random
import sys
import sysconfig
from pathlib import Path
from pydoc_data import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

FILE = Path(__file__).parent / "data" / "sar.pt"
LETTERS, MOST_TOKENS, ROWS = 128, 64, 4_000  # letters and tokens of a row
STUDENT_TOKENS, TEACHER_TOKENS = 512, 1024
IGNORED = -100


def read_texts():
    """Return help pages and sources, ASCII only: there a letter is a byte, for both tokenizers."""
    pages = [page for _, page in sorted(topics.topics.items())]
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py"))
    sources = [file.read_text("utf-8") for file in files]
    return [text.encode("ascii", "ignore").decode() for text in pages + sources]


def train_tokenizer(texts, tokens):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, initial_alphabet=letters, show_progress=False, special_tokens=["<pad>"]
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def first_tokens(teacher, student):
    """Return, for each token of the teacher, the student's token with which its text begins."""
    texts = [teacher.decode([token]) for token in range(teacher.get_vocab_size())]
    return torch.tensor([(student.encode(text).ids or [0])[0] for text in texts])


def encode_row(piece, student, teacher):
    """Return the student's tokens, the teacher's tokens, and the teacher's place at each of the student's."""
    read, known = student.encode(piece), teacher.encode(piece)
    places = {end: place for place, (_, end) in enumerate(known.offsets)}
    return read.ids, known.ids, [places.get(end, IGNORED) for _, end in read.offsets]


def make_rows(texts, student, teacher):
    pieces = [text[i : i + LETTERS] for text in texts for i in range(0, len(text), LETTERS)]
    random.Random(0).shuffle(pieces)  # noqa: S311
    encoded = (encode_row(piece, student, teacher) for piece in pieces)
    short = (row for row in encoded if max(len(row[0]), len(row[1])) <= MOST_TOKENS)
    columns = zip(*itertools.islice(short, ROWS), strict=True)
    students, teachers, places = ([torch.tensor(row) for row in column] for column in columns)
    return {
        "student": pad_sequence(students, batch_first=True, padding_value=IGNORED),
        "teacher": pad_sequence(teachers, batch_first=True, padding_value=IGNORED),
        "places": pad_sequence(places, batch_first=True, padding_value=IGNORED),
    }


def train(model, rows, steps):
    """Train a model of next tokens in FP32, and return its weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        tokens = rows[torch.randint(len(rows), (16,))]
        logits = model(tokens.clamp(min=0))[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{type(model).__name__}: {loss.item():.2f} nats a token, {steps} steps", file=sys.stderr)
    return model.state_dict()


def make():
    """Make everything. The teacher is trained for longer: it must know more than the student."""
    from model import Student, Teacher  # noqa: PLC0415 - which imports this module

    torch.manual_seed(0)
    texts = read_texts()
    student, teacher = (train_tokenizer(texts, n) for n in (STUDENT_TOKENS, TEACHER_TOKENS))
    rows = make_rows(texts, student, teacher)
    return {
        "rows": rows,
        "first": first_tokens(teacher, student),
        "teacher": train(Teacher(), rows["teacher"], 250),
        "student": train(Student(), rows["student"], 50),
    }


def load():
    """Return rows, the map between the vocabularies and the weights; make them if they are not there."""
    if not FILE.exists():
        FILE.parent.mkdir(exist_ok=True)
        part = FILE.with_suffix(f".{os.getpid()}")
        torch.save(make(), part)
        part.rename(FILE)
    return torch.load(FILE, weights_only=True)


if __name__ == "__main__":
    rows = load()["rows"]
    shared = (rows["places"] >= 0).sum() / (rows["student"] >= 0).sum()
    print({name: tuple(column.shape) for name, column in rows.items()})
    print(f"{shared:.0%} of the student's tokens end where a token of the teacher ends")
