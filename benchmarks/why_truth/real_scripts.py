"""Training scripts of other projects, and a numerical fault for each, with the line that ``why`` must name.

A fault stands in for lines of the script, or follows them, and runs only if the environment variable PLANT is
set. Setup edits hold for both runs: smaller models, a CPU instead of a GPU, FP16 autocast where the
script has it for CUDA only. Nothing else of the scripts is kept here: ``why_real`` copies them from
checkouts of their repositories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PLANT = "HALFGUARD_PLANT"


@dataclass(frozen=True)
class Edit:
    """Whole lines of a file, each of which occurs once in this order, and what replaces them."""

    path: str  # beside the script
    anchor: str
    replacement: str


@dataclass(frozen=True)
class Fault:
    """Lines that stand in for others, or follow them, if PLANT is set."""

    path: str
    anchor: str
    lines: str  # with the indentation of the anchor
    follows: bool = False


@dataclass(frozen=True)
class RealScript:
    """A script of another project, how it runs on made-up data, and a fault."""

    name: str
    style: str
    source: str  # a repository on GitHub, or an installed package
    version: str  # its commit or version
    path: str
    arguments: str
    data: str  # a maker of real_data
    fault: Fault
    line: str  # where the first bad number arises
    fp32: Literal["fine", "fails"]
    setup: tuple[Edit, ...] = ()


_EXAMPLES = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
_LIGHTNING = "7f0c3436cd3f6ad3753125672024fc415cbcb414"
_TRANSFORMERS = "d56c55bf564ddb176759eb6ec199442682564916"
_ACCELERATE = "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83"

NANOGPT = RealScript(
    name="nanogpt_temperature",
    style="plain",
    source="karpathy/nanoGPT",
    version="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    path="train.py",
    arguments=(
        "--dataset=made_up --device=cpu --dtype=float16 --compile=False --eval_iters=2"
        " --eval_interval=50 --block_size=32 --batch_size=8 --n_layer=2 --n_head=2 --n_embd=32"
        " --max_iters=120 --lr_decay_iters=120 --warmup_iters=10 --learning_rate=0.01"
        " --gradient_accumulation_steps=2"
    ),
    data="characters",
    setup=(
        Edit(
            "train.py",
            "ctx = nullcontext() if device_type == 'cpu' else torch.amp.autocast("
            "device_type=device_type, dtype=ptdtype)",
            "ctx = torch.amp.autocast(device_type=device_type, dtype=ptdtype)",
        ),
        Edit(
            "train.py",
            "scaler = torch.cuda.amp.GradScaler(enabled=(dtype == 'float16'))",
            "scaler = torch.amp.GradScaler(device_type, enabled=(dtype == 'float16'))",
        ),
    ),
    fault=Fault(
        "model.py",
        "            logits = self.lm_head(x)",
        "            logits = self.lm_head(x) / 1e-5",
    ),
    line="logits = self.lm_head(x) / 1e-5",
    fp32="fine",
)

VAE = RealScript(
    name="vae_log_of_zero",
    style="plain",
    source="pytorch/examples",
    version=_EXAMPLES,
    path="vae/main.py",
    arguments="--epochs 5 --batch-size 32",
    data="mnist_beside",
    fault=Fault(
        "main.py",
        "    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction='sum')",
        "    y = x.view(-1, 784)\n"
        "    BCE = -(y * torch.log(recon_x) + (1 - y) * torch.log(1 - recon_x)).sum()",
    ),
    line="BCE = -(y * torch.log(recon_x) + (1 - y) * torch.log(1 - recon_x)).sum()",
    fp32="fails",
)

WORD_MODEL = RealScript(
    name="word_model_sqrt_at_zero",
    style="plain",
    source="pytorch/examples",
    version=_EXAMPLES,
    path="word_language_model/main.py",
    arguments=(
        "--epochs 1 --batch_size 10 --bptt 20 --emsize 32 --nhid 32 --nlayers 1 --dropout 0 --lr 5"
        " --log-interval 20"
    ),
    data="text_with_a_doubled_word",
    fault=Fault(
        "main.py",
        "        loss = criterion(output, targets)",
        "        jump = model.encoder(data[1:]) - model.encoder(data[:-1])\n"
        "        loss = criterion(output, targets) + 1e-3 * jump.pow(2).sum(-1).sqrt().mean()",
    ),
    line="loss = criterion(output, targets) + 1e-3 * jump.pow(2).sum(-1).sqrt().mean()",
    fp32="fails",
)

AUTOENCODER = RealScript(
    name="lightning_autoencoder_pixels",
    style="lightning",
    source="Lightning-AI/pytorch-lightning",
    version=_LIGHTNING,
    path="examples/pytorch/basics/autoencoder.py",
    arguments=(
        "--trainer.max_epochs 1 --trainer.limit_train_batches 150 --trainer.limit_val_batches 2"
        " --trainer.limit_test_batches 2 --trainer.limit_predict_batches 2"
        " --trainer.accelerator cpu --trainer.enable_progress_bar False"
        """ --trainer.plugins '{"class_path": "lightning.pytorch.plugins.MixedPrecision","""
        """ "init_args": {"precision": "16-mixed", "device": "cpu"}}'"""
    ),
    data="mnist_for_lightning",
    fault=Fault(
        "autoencoder.py",
        "        loss = F.mse_loss(x, self(x))",
        "        error = 255 * (x.half() - self(x))\n        loss = error.pow(2).mean()",
    ),
    line="loss = error.pow(2).mean()",
    fp32="fine",
)

GAN = RealScript(
    name="lightning_gan_unit_length",
    style="lightning",
    source="Lightning-AI/pytorch-lightning",
    version=_LIGHTNING,
    path="examples/pytorch/domain_templates/generative_adversarial_net.py",
    arguments="",
    data="mnist_with_black_images",
    setup=(
        Edit(
            "generative_adversarial_net.py",
            '    trainer = Trainer(accelerator="gpu", devices=1)',
            '    trainer = Trainer(accelerator="cpu", max_epochs=1, limit_train_batches=60)',
        ),
        Edit(
            "generative_adversarial_net.py",
            "    dm = MNISTDataModule()",
            "    dm = MNISTDataModule(num_workers=2)",
        ),
    ),
    fault=Fault(
        "generative_adversarial_net.py",
        "        img_flat = img.view(img.size(0), -1)",
        "        img_flat = img.view(img.size(0), -1)\n"
        "        img_flat = img_flat / img_flat.norm(dim=1, keepdim=True)",
    ),
    line="img_flat = img_flat / img_flat.norm(dim=1, keepdim=True)",
    fp32="fails",
)

RUN_GLUE = RealScript(
    name="run_glue_half_weights",
    style="trainer",
    source="huggingface/transformers",
    version=_TRANSFORMERS,
    path="examples/pytorch/text-classification/run_glue.py",
    arguments=(
        "--model_name_or_path bert --train_file train.csv --validation_file validation.csv"
        " --do_train --do_eval --max_seq_length 32 --per_device_train_batch_size 16 --max_steps 20"
        " --learning_rate 1e-3 --optim adamw_torch --output_dir out --report_to none"
    ),
    data="labelled_sentences",
    fault=Fault(
        "run_glue.py",
        "    # Initialize our Trainer",
        "    model = model.half()",
        follows=True,
    ),
    line="model = model.half()",
    fp32="fine",
)

RUN_CLM = RealScript(
    name="run_clm_exp",
    style="trainer",
    source="huggingface/transformers",
    version=_TRANSFORMERS,
    path="examples/pytorch/language-modeling/run_clm.py",
    arguments=(
        "--model_name_or_path llama --train_file train.txt --do_train --block_size 32"
        " --per_device_train_batch_size 8 --max_steps 40 --learning_rate 1e-2 --output_dir out"
        " --report_to none"
    ),
    data="plain_text",
    fault=Fault(
        "run_clm.py",
        "    # Training",
        "    def sharp_loss(outputs, labels, num_items_in_batch=None):\n"
        "        logits = outputs.logits[:, :-1] / 0.8**trainer.state.global_step\n"
        "        wanted = logits.gather(2, labels[:, 1:, None]).squeeze(2)\n"
        "        return (torch.log(torch.exp(logits).sum(2)) - wanted).mean()\n"
        "    trainer.compute_loss_func = sharp_loss",
        follows=True,
    ),
    line="return (torch.log(torch.exp(logits).sum(2)) - wanted).mean()",
    fp32="fails",
)

SFT = RealScript(
    name="trl_sft_rare_tokens",
    style="trl or peft",
    source="trl",
    version="1.16.0",
    path="scripts/sft.py",
    arguments=(
        "--model_name_or_path llama --dataset_name samples --dtype float16 --use_peft --lora_r 4"
        " --learning_rate 1e-2 --max_steps 40 --per_device_train_batch_size 8 --bf16 False"
        " --output_dir out --report_to none --save_strategy no --logging_steps 5"
    ),
    data="text_samples",
    fault=Fault(
        "sft.py",
        "    # Train the model",
        "    import torch\n"
        "    def rare_token_loss(outputs, labels, num_items_in_batch=None):\n"
        "        logits = outputs.logits[:, :-1].transpose(1, 2)\n"
        '        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:], reduction="none")\n'
        "        weight = 1 / torch.exp(-loss).detach().pow(trainer.state.global_step / 4)\n"
        "        return (weight / weight.max() * loss).mean()\n"
        "    trainer.compute_loss_func = rare_token_loss",
        follows=True,
    ),
    line="weight = 1 / torch.exp(-loss).detach().pow(trainer.state.global_step / 4)",
    fp32="fine",
)

NLP_EXAMPLE = RealScript(
    name="accelerate_nlp_empty_class",
    style="accelerate",
    source="huggingface/accelerate",
    version=_ACCELERATE,
    path="examples/nlp_example.py",
    arguments="--cpu",
    data="glue_with_a_rare_label",
    fault=Fault(
        "nlp_example.py",
        "            loss = outputs.loss",
        '            labels = batch["labels"]\n'
        "            each = torch.nn.functional.cross_entropy("
        'outputs.logits, labels, reduction="none")\n'
        "            loss = (each[labels == 0].mean() + each[labels == 1].mean()) / 2",
    ),
    line="loss = (each[labels == 0].mean() + each[labels == 1].mean()) / 2",
    fp32="fails",
)

CV_EXAMPLE = RealScript(
    name="accelerate_cv_eps_in_half",
    style="accelerate",
    source="huggingface/accelerate",
    version=_ACCELERATE,
    path="examples/cv_example.py",
    arguments="--data_dir pets --cpu",
    data="pictures_with_blank_ones",
    setup=(
        Edit(
            "cv_example.py",
            '    model = create_model("resnet50d", pretrained=True, num_classes=len(label_to_id))',
            '    model = create_model("resnet10t", pretrained=False, num_classes=len(label_to_id))',
        ),
        Edit(
            "cv_example.py",
            '    config = {"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 64,'
            ' "image_size": 224}',
            '    config = {"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 16,'
            ' "image_size": 64}',
        ),
    ),
    fault=Fault(
        "cv_example.py",
        '            inputs = (batch["image"] - mean) / std\n            outputs = model(inputs)',
        '            image = batch["image"].half()\n'
        "            image = image - image.mean((1, 2, 3), keepdim=True)\n"
        "            contrast = image.pow(2).mean((1, 2, 3), keepdim=True).sqrt()\n"
        "            inputs = (image / (contrast + 1e-8)).float()\n"
        "            outputs = model(inputs)",
    ),
    line="inputs = (image / (contrast + 1e-8)).float()",
    fp32="fine",
)

REAL_SCRIPTS = (
    NANOGPT,
    VAE,
    WORD_MODEL,
    AUTOENCODER,
    GAN,
    RUN_GLUE,
    RUN_CLM,
    SFT,
    NLP_EXAMPLE,
    CV_EXAMPLE,
)
