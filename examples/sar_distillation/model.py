"""A teacher and a student with two tokenizers, a router, and the loss between them, in four variants.

``broken``   as it was run first: weights in half, no loss scale, log(p + 1e-8) of the aligned teacher
``patched``  the change that circulated: clamped logits and losses, lower rates; the weights stayed in half
``epsilon``  FP32 weights under autocast; the alignment is as it was
``cured``    FP32 weights, and the alignment in FP32
"""

import torch
from prepare import IGNORED, STUDENT_TOKENS, TEACHER_TOKENS
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaForCausalLM

import halfguard as hg

VARIANTS = ("broken", "patched", "epsilon", "cured")
WIDTH = 64


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        config = LlamaConfig(
            vocab_size=TEACHER_TOKENS, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


class Student(nn.Module):
    """A small GPT-2 whose last layer has two experts, mixed by a router."""

    def __init__(self):
        super().__init__()
        config = GPT2Config(
            vocab_size=STUDENT_TOKENS, n_positions=128, n_embd=WIDTH, n_layer=2, n_head=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.body = GPT2Model(config)
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, STUDENT_TOKENS)

    def forward(self, tokens):
        hidden = self.body(input_ids=tokens, use_cache=False).last_hidden_state
        shares = self.router(hidden).softmax(-1).unsqueeze(-1)
        answers = torch.stack([functional.gelu(expert(hidden)) for expert in self.experts], -2)
        return self.head(self.norm(hidden + (shares * answers).sum(-2)))


class Alignment(nn.Module):
    """The divergence from the teacher, whose tokens count as the student's token that they begin with."""

    def __init__(self, first, temperature):
        super().__init__()
        self.temperature = temperature
        self.register_buffer("matrix", functional.one_hot(first, STUDENT_TOKENS).float())

    def forward(self, student, teacher, labels):
        counted = labels != IGNORED
        known = torch.softmax(teacher[counted] / self.temperature, -1) @ self.matrix
        read = torch.log_softmax(student[counted] / self.temperature, -1)
        divergence = known * (torch.log(known + 1e-8) - read)
        kd = self.temperature**2 * divergence.sum(-1).mean()
        return kd, kd.new_ones((), dtype=torch.bool)


class StableAlignment(Alignment):
    """The same in FP32. If it is not finite, the second result is False, and the first is 0."""

    def forward(self, student, teacher, labels):
        with torch.autocast(student.device.type, enabled=False):
            known = torch.softmax(teacher.float() / self.temperature, -1) @ self.matrix.float()
        # Logits over the student's tokens, with this distribution at this temperature.
        logits = self.temperature * known.clamp(min=torch.finfo(known.dtype).tiny).log()
        loss = hg.ops.distillation_loss(
            student, logits, labels, temperature=self.temperature, kd_weight=1.0, ce_weight=0.0
        )
        return loss.kd, loss.kd_used


class Distillation(nn.Module):
    """The student with all that its loss needs; ``forward`` returns the loss and its two parts."""

    def __init__(self, data, variant, temperature, alpha_kd, alpha_ce):
        super().__init__()
        self.alpha_kd, self.alpha_ce, self.patched = alpha_kd, alpha_ce, variant == "patched"
        self.student, self.teacher = Student(), Teacher()
        self.teacher.load_state_dict(data["teacher"])
        self.teacher.requires_grad_(False)
        align = StableAlignment if variant == "cured" else Alignment
        self.alignment = align(data["first"], temperature)
        self.register_buffer("kd_fallbacks", torch.zeros((), dtype=torch.long))

    def forward(self, tokens, teacher_tokens, places):
        labels = tokens[:, 1:]
        student = self.student(tokens.clamp(min=0))[:, :-1]
        with torch.no_grad():
            teacher = self.teacher(teacher_tokens.clamp(min=0))
        rows = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        teacher = teacher[rows, places[:, :-1].clamp(min=0)]
        if self.patched:
            student, teacher = student.clamp(-5, 5), teacher.clamp(-5, 5)
        shared = labels.masked_fill(places[:, :-1] == IGNORED, IGNORED)
        kd, kd_used = self.alignment(student, teacher, shared)
        self.kd_fallbacks += (~kd_used).long()
        ce = functional.cross_entropy(student.float().flatten(0, 1), labels.flatten())
        return self.alpha_kd * kd + self.alpha_ce * ce, kd, ce
