"""Speech and a pretrained model: ``python prepare.py`` writes ``data/speech.pt`` and ``data/base``.

espeak-ng says 64 commands with six voices. The base model has learnt two of them; the other four are new, and
the adapters learn these. A quarter of the new voices' commands is held out.
"""

import io
import itertools
import os
import shutil
import subprocess
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from model import AudioConfig, AudioLanguageModel

from halfguard import half_state_dict

FOLDER = Path(__file__).parent / "data"
WORDS = (
    ("open", "close", "find", "move"),
    ("red", "blue", "green", "yellow"),
    ("door", "box", "window", "bottle"),
)
VOCABULARY = ["<start>", "<end>", *itertools.chain(*WORDS)]
KNOWN_VOICES = ("en-us", "en-us+f2")
NEW_VOICES = ("en-gb-scotland+m5", "en-gb-x-rp+f4", "en-029+m3", "en-us+croak")
SAMPLES = 40_000  # 1.8 seconds at espeak-ng's rate of 22,050


def speak(text, voice):
    """Return a waveform as the 16-bit integers of its file."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise SystemExit("espeak-ng is missing: apt-get install espeak-ng")
    done = subprocess.run([program, "-v", voice, "--stdout", text], capture_output=True, check=True)  # noqa: S603
    with wave.open(io.BytesIO(done.stdout)) as file:
        data = file.readframes(file.getnframes())
    samples = torch.frombuffer(bytearray(data), dtype=torch.int16)[:SAMPLES]
    return torch.nn.functional.pad(samples, (0, SAMPLES - len(samples)))


def speak_all(voices):
    """Return the waveforms and the token ids of every command in every voice."""
    said = list(itertools.product(voices, itertools.product(*WORDS)))
    with ThreadPoolExecutor(2) as pool:
        waves = list(
            pool.map(lambda one: speak(f"{one[1][0]} the {' '.join(one[1][1:])}", one[0]), said)
        )
    ids = [[0, *(VOCABULARY.index(word) for word in words), 1] for _, words in said]
    return {"waveforms": torch.stack(waves), "labels": torch.tensor(ids)}


def make_speech():
    known, new = speak_all(KNOWN_VOICES), speak_all(NEW_VOICES)
    order = torch.randperm(len(new["labels"]), generator=torch.Generator().manual_seed(0))
    parts = order.split(len(order) * 3 // 4)
    return {
        "known": known,
        "train": {key: value[parts[0]] for key, value in new.items()},
        "test": {key: value[parts[1]] for key, value in new.items()},
    }


def pretrain(rows, steps=300):
    """Return a model that understands the known voices, trained in FP32."""
    torch.manual_seed(0)
    model = AudioLanguageModel(AudioConfig(vocab_size=len(VOCABULARY)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        chosen = torch.randint(len(rows["labels"]), (16,))
        loss = model(**{key: value[chosen] for key, value in rows.items()})["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def store(path, write):
    """Write a file or folder under another name, then rename it: another process may do the same."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    write(part)
    try:
        part.rename(path)
    except OSError:  # the other process was faster
        shutil.rmtree(part)


def load():
    """Return the speech and the folder of the base model; make them first if they are not there."""
    FOLDER.mkdir(exist_ok=True)
    speech, base = FOLDER / "speech.pt", FOLDER / "base"
    if not speech.exists():
        store(speech, lambda part: torch.save(make_speech(), part))
    rows = torch.load(speech, weights_only=True)
    if not base.exists():
        model = pretrain(rows["known"])
        state = half_state_dict(model)
        store(base, lambda part: model.save_pretrained(part, state_dict=state))
    return rows, base


if __name__ == "__main__":
    for name, rows in load()[0].items():
        print(f"{name:<8}{len(rows['labels'])} commands")
