"""SFT with a distillation term from the teacher's top-k distribution."""
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = "the cat dog sat ran on under mat road and then slept ate fish bread".split()


def build_tokenizer():
    vocab = {w: i for i, w in enumerate(["[PAD]", "[EOS]", "[UNK]"] + WORDS)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]")


def gpt2(tokenizer, width):
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=width, n_layer=1, n_head=2,
                                      bos_token_id=1, eos_token_id=1, pad_token_id=0))


class DistillTrainer(SFTTrainer):
    top_k = 5
    start_after = 12  # let the student learn the format first
    teacher = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=inputs["labels"])
        loss = outputs.loss
        if self.state.global_step >= self.start_after:
            with torch.no_grad():
                t_logits = self.teacher(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            kth = t_logits.topk(self.top_k, dim=-1).values[..., -1:]
            t_probs = torch.softmax(t_logits.masked_fill(t_logits < kth, float("-inf")), dim=-1)
            s_logp = torch.log_softmax(outputs.logits, dim=-1)
            kl = (t_probs * (t_probs.log() - s_logp)).sum(-1)
            loss = loss + 0.5 * kl[inputs["labels"] != -100].mean()
        return (loss, outputs) if return_outputs else loss


def main():
    torch.manual_seed(19)
    g = torch.Generator().manual_seed(20)
    texts = [" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (7,), generator=g)) for _ in range(120)]
    tokenizer = build_tokenizer()
    args = SFTConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=24, learning_rate=1e-3,
                     logging_steps=2, logging_nan_inf_filter=False, save_strategy="no", report_to="none",
                     use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, max_length=16)
    trainer = DistillTrainer(model=gpt2(tokenizer, 16), args=args, processing_class=tokenizer,
                             train_dataset=Dataset.from_dict({"text": texts}))
    trainer.teacher = gpt2(tokenizer, 32).eval()
    trainer.train()


if __name__ == "__main__":
    main()
