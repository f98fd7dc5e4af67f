import lightning as L
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn


class Agent(L.LightningModule):
    """Policy gradient on a contextual bandit."""

    def __init__(self, beta=0.01):
        super().__init__()
        self.beta = beta
        self.policy = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 5))
        with torch.no_grad():
            self.policy[2].weight *= 12

    def training_step(self, batch, batch_idx):
        state, best = batch
        logits = self.policy(state)
        probs = torch.softmax(logits, -1, dtype=logits.dtype)
        action = torch.multinomial(probs.float().detach(), 1)
        reward = (action.squeeze(1) == best).float()
        picked = logits.float().log_softmax(-1).gather(1, action).squeeze(1)
        entropy = -(probs * probs.log()).sum(-1).mean()
        loss = -(picked * (reward - reward.mean())).mean() - self.beta * entropy
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


L.seed_everything(1)
states = torch.randn(320, 12) * 2
data = torch.utils.data.TensorDataset(states, states[:, :5].argmax(1))
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
)
trainer.fit(Agent(), torch.utils.data.DataLoader(data, batch_size=32))
