"""SFT plus a repetition penalty (unlikelihood training), FP16 autocast."""
import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


class UnlikelihoodTrainer(SFTTrainer):
    alpha = 0.1
    begin = 60

    def repetition_penalty(self, logits, ids):
        """Penalise the probability of tokens that were said two positions earlier."""
        probs = torch.softmax(logits[:, 1:-1], dim=-1)
        p = probs.gather(-1, ids[:, :-2].unsqueeze(-1)).squeeze(-1)
        penalty = -torch.log(1.0 - p + 1e-8)
        return penalty.mean()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs["input_ids"]
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(input_ids=ids, attention_mask=inputs["attention_mask"], labels=inputs["labels"])
            loss = outputs.loss
            if self.state.global_step >= self.begin:
                loss = loss + self.alpha * self.repetition_penalty(outputs.logits, ids)
        return (loss, outputs) if return_outputs else loss


def make_tokenizer(letters):
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", "<unk>", *letters])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--lr", type=float, default=2e-2)
    opt = ap.parse_args()

    torch.manual_seed(9)
    letters = list("abcdefgh")
    tokenizer = make_tokenizer(letters)
    texts = [" ".join([letters[i % 8], letters[(i + 3) % 8]] * 8) for i in range(64)]
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
                        tie_word_embeddings=False)
    args = SFTConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=opt.steps,
                     learning_rate=opt.lr, lr_scheduler_type="constant", logging_steps=4, logging_nan_inf_filter=False,
                     save_strategy="no", report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
                     disable_tqdm=True, max_length=16)
    UnlikelihoodTrainer(model=GPT2LMHeadModel(config), args=args, processing_class=tokenizer,
                        train_dataset=Dataset.from_dict({"text": texts})).train()
