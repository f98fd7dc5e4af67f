"""A second set of other projects' training scripts, each with a numerical fault (see ``real_scripts``).

None of these scripts, and none of these faults, was known while ``why`` was written.
"""

from __future__ import annotations

from benchmarks.why_truth.real_scripts import Edit, Fault, RealScript

MAKEMORE = RealScript(
    name="makemore_attention_scores",
    style="plain",
    source="karpathy/makemore",
    version="988aa59e4d8fefa526d06f3b453ad116258398d4",
    path="makemore.py",
    arguments=(
        "--max-steps 120 --num-workers 0 --n-layer 2 --n-head 2 --n-embd 32 --learning-rate 0.02"
    ),
    data="nothing",
    fault=Fault(
        "makemore.py",
        "        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))",
        "        att = (48 * q).half() @ (48 * k).half().transpose(-2, -1)\n"
        "        att = att.float() / (48 * 48 * math.sqrt(k.size(-1)))",
    ),
    line="att = (48 * q).half() @ (48 * k).half().transpose(-2, -1)",
    fp32="fine",
)

UNET = RealScript(
    name="unet_dice_sum",
    style="plain",
    source="milesial/Pytorch-UNet",
    version="21d7850f2af30a9695bbeea75f3136aa538cfc4a",
    path="train.py",
    arguments="--amp --epochs 3 --batch-size 4 --scale 1 --validation 20 --learning-rate 1e-3",
    data="pictures_and_masks",
    setup=(
        Edit(
            "train.py",
            "    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)",
            "    grad_scaler = torch.amp.GradScaler(device.type, enabled=amp)",
        ),
        Edit(
            "train.py",
            "                with torch.autocast("
            "device.type if device.type != 'mps' else 'cpu', enabled=amp):",
            "                with torch.autocast(device.type, torch.float16, enabled=amp):",
        ),
        Edit(
            "unet/unet_model.py",
            "        self.inc = (DoubleConv(n_channels, 64))\n"
            "        self.down1 = (Down(64, 128))\n"
            "        self.down2 = (Down(128, 256))\n"
            "        self.down3 = (Down(256, 512))",
            "        self.inc = (DoubleConv(n_channels, 4))\n"
            "        self.down1 = (Down(4, 8))\n"
            "        self.down2 = (Down(8, 16))\n"
            "        self.down3 = (Down(16, 32))",
        ),
        Edit(
            "unet/unet_model.py",
            "        self.down4 = (Down(512, 1024 // factor))\n"
            "        self.up1 = (Up(1024, 512 // factor, bilinear))\n"
            "        self.up2 = (Up(512, 256 // factor, bilinear))\n"
            "        self.up3 = (Up(256, 128 // factor, bilinear))\n"
            "        self.up4 = (Up(128, 64, bilinear))\n"
            "        self.outc = (OutConv(64, n_classes))",
            "        self.down4 = (Down(32, 64 // factor))\n"
            "        self.up1 = (Up(64, 32 // factor, bilinear))\n"
            "        self.up2 = (Up(32, 16 // factor, bilinear))\n"
            "        self.up3 = (Up(16, 8 // factor, bilinear))\n"
            "        self.up4 = (Up(8, 4, bilinear))\n"
            "        self.outc = (OutConv(4, n_classes))",
        ),
    ),
    fault=Fault(
        "utils/dice_score.py",
        "    inter = 2 * (input * target).sum(dim=sum_dim)",
        "    inter = 2 * (input.half() * target.half()).sum(dim=sum_dim)",
    ),
    line="inter = 2 * (input.half() * target.half()).sum(dim=sum_dim)",
    fp32="fine",
)

PPO = RealScript(
    name="cleanrl_ppo_value_error",
    style="plain",
    source="vwxyzjn/cleanrl",
    version="fe8d8a03c41a7ef5b523e2e354bd01c363e786bb",
    path="cleanrl/ppo.py",
    arguments="--total-timesteps 10240 --no-cuda --learning-rate 1e-3",
    data="nothing",
    fault=Fault(
        "ppo.py",
        "                    v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2",
        "                    error = (16 * (newvalue - b_returns[mb_inds])).half()\n"
        "                    v_loss_unclipped = (error**2).float() / 256",
    ),
    line="v_loss_unclipped = (error**2).float() / 256",
    fp32="fine",
)

CIFAR = RealScript(
    name="cifar_rate_without_limit",
    style="plain",
    source="kuangliu/pytorch-cifar",
    version="49b7aa97b0c12fe0d4054e670403a16b6b834ddd",
    path="main.py",
    arguments="--lr 0.01",
    data="nothing",
    setup=(
        Edit(
            "utils.py",
            "_, term_width = os.popen('stty size', 'r').read().split()",
            "term_width = 80",
        ),
        Edit(
            "main.py",
            "trainset = torchvision.datasets.CIFAR10(\n"
            "    root='./data', train=True, download=True, transform=transform_train)",
            "trainset = torchvision.datasets.FakeData(\n"
            "    2560, (3, 32, 32), transform=transform_train)",
        ),
        Edit(
            "main.py",
            "testset = torchvision.datasets.CIFAR10(\n"
            "    root='./data', train=False, download=True, transform=transform_test)",
            "testset = torchvision.datasets.FakeData(\n    100, (3, 32, 32), transform=transform_test)",
        ),
        Edit("main.py", "net = SimpleDLA()", "net = LeNet()"),
        Edit(
            "main.py",
            "for epoch in range(start_epoch, start_epoch+200):",
            "for epoch in range(start_epoch, start_epoch+1):",
        ),
    ),
    fault=Fault(
        "main.py",
        "        optimizer.step()",
        "        rate = args.lr / torch.tensor(batch_idx - 12.0).abs().sqrt()\n"
        '        optimizer.param_groups[0]["lr"] = rate.item()\n'
        "        optimizer.step()",
    ),
    line="rate = args.lr / torch.tensor(batch_idx - 12.0).abs().sqrt()",
    fp32="fails",
)

DIFFUSION = RealScript(
    name="diffusers_weight_of_first_times",
    style="accelerate",
    source="huggingface/diffusers",
    version="58eb52c0803ea9af3abec60841c2a093bdf1f951",
    path="examples/unconditional_image_generation/train_unconditional.py",
    arguments=(
        "--train_data_dir pictures --resolution 16 --train_batch_size 8 --num_epochs 5"
        " --prediction_type sample --ddpm_num_steps 200 --ddpm_num_inference_steps 2"
        " --eval_batch_size 1 --model_config_name_or_path unet --output_dir out"
        " --save_images_epochs 100 --save_model_epochs 100 --lr_warmup_steps 5"
    ),
    data="pictures_and_a_small_unet",
    fault=Fault(
        "train_unconditional.py",
        "                    snr_weights = alpha_t / (1 - alpha_t)",
        "                    alpha_t = alpha_t.half()\n"
        "                    snr_weights = alpha_t / (1 - alpha_t)",
    ),
    line="snr_weights = alpha_t / (1 - alpha_t)",
    fp32="fine",
)

OLORA = RealScript(
    name="peft_olora_entropy",
    style="trl or peft",
    source="huggingface/peft",
    version="5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40",
    path="examples/olora_finetuning/olora_finetuning.py",
    arguments=(
        "--base_model llama --data_path samples --device_map cpu --lora_r 4 --cutoff_len 48"
        " --batch_size 8 --num_epochs 2 --learning_rate 1e-2 --seed 1"
    ),
    data="instructions",
    fault=Fault(
        "olora_finetuning.py",
        "    trainer.train()",
        "    def with_entropy(outputs, labels, num_items_in_batch=None):\n"
        "        logits = outputs.logits[:, :-1] / 0.8**trainer.state.global_step\n"
        "        p = torch.softmax(logits, -1)\n"
        "        entropy = -(p * p.log()).sum(-1).mean()\n"
        "        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels[:, 1:])\n"
        "        return each - 0.01 * entropy\n"
        "    trainer.compute_loss_func = with_entropy\n"
        "    trainer.train()",
    ),
    line="entropy = -(p * p.log()).sum(-1).mean()",
    fp32="fine",
)

COPY = RealScript(
    name="x_transformers_unit_gradient",
    style="plain",
    source="lucidrains/x-transformers",
    version="9252ed7838021ee61e6c5be0930b3a9a88efdf06",
    path="train_copy.py",
    arguments="",
    data="nothing",
    setup=(
        Edit("train_copy.py", "NUM_BATCHES = int(1e5)", "NUM_BATCHES = 60"),
        Edit("train_copy.py", "BATCH_SIZE = 32", "BATCH_SIZE = 8"),
        Edit("train_copy.py", "    dim = 128,", "    dim = 32,"),
        Edit("train_copy.py", "GENERATE_EVERY  = 100", "GENERATE_EVERY  = 1000"),
        Edit("train_copy.py", "LEARNING_RATE = 3e-4", "LEARNING_RATE = 3e-3"),
    ),
    fault=Fault(
        "train_copy.py",
        "# training",
        "class UnitGradient(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return grad / grad.half().norm(dim=-1, keepdim=True).clamp(min=1e-8)\n"
        "def limited(module, inputs, output):\n"
        "    return UnitGradient.apply(output)\n"
        "model.decoder.net.to_logits.register_forward_hook(limited)",
        follows=True,
    ),
    line="return grad / grad.half().norm(dim=-1, keepdim=True).clamp(min=1e-8)",
    fp32="fine",
)

WAVES = RealScript(
    name="time_sequence_relative_error",
    style="plain",
    source="pytorch/examples",
    version="77f55b912142e11fcfdf5b530231fb9c52f181e8",
    path="time_sequence_prediction/train.py",
    arguments="--steps 2",
    data="waves",
    setup=(
        Edit(
            "train.py",
            "    data = torch.load('traindata.pt')",
            "    data = torch.load('traindata.pt', weights_only=False)",
        ),
        Edit("train.py", "            future = 1000", "            future = 10"),
    ),
    fault=Fault(
        "train.py",
        "            loss = criterion(out, target)",
        "            loss = ((out - target) / target).half().pow(2).mean().double()",
    ),
    line="loss = ((out - target) / target).half().pow(2).mean().double()",
    fp32="fine",
)

FABRIC = RealScript(
    name="fabric_blank_image",
    style="lightning",
    source="Lightning-AI/pytorch-lightning",
    version="7f0c3436cd3f6ad3753125672024fc415cbcb414",
    path="examples/fabric/image_classifier/train_fabric.py",
    arguments="--epochs 1 --batch-size 16",
    data="mnist_for_fabric",
    fault=Fault(
        "train_fabric.py",
        "    transform = T.Compose([T.ToTensor(), T.Normalize((0.1307,), (0.3081,))])",
        "    transform = T.Compose([T.ToTensor(), lambda x: (x - x.mean()) / x.std()])",
    ),
    line="transform = T.Compose([T.ToTensor(), lambda x: (x - x.mean()) / x.std()])",
    fp32="fails",
)

RUN_MLM = RealScript(
    name="run_mlm_mask_constant",
    style="trainer",
    source="huggingface/transformers",
    version="d56c55bf564ddb176759eb6ec199442682564916",
    path="examples/pytorch/language-modeling/run_mlm.py",
    arguments=(
        "--model_name_or_path bert --train_file train.txt --do_train --max_seq_length 32"
        " --per_device_train_batch_size 8 --max_steps 30 --learning_rate 1e-3 --output_dir out"
        " --report_to none"
    ),
    data="text_for_bert",
    fault=Fault(
        "run_mlm.py",
        "    # Training",
        "    def loss_of_words(outputs, labels, num_items_in_batch=None):\n"
        "        logits = outputs.logits.half()\n"
        "        special = (torch.arange(logits.size(-1)) < 5).half()\n"
        "        logits = logits + special * (-1e9 * torch.ones_like(logits))\n"
        "        return torch.nn.functional.cross_entropy(\n"
        "            logits.float().transpose(1, 2), labels\n"
        "        )\n"
        "    trainer.compute_loss_func = loss_of_words",
        follows=True,
    ),
    line="logits = logits + special * (-1e9 * torch.ones_like(logits))",
    fp32="fine",
)

SECOND_SET = (MAKEMORE, UNET, PPO, CIFAR, DIFFUSION, OLORA, COPY, WAVES, FABRIC, RUN_MLM)
