"""A multi-modal graph recommender: one graph network for each modality, and a ranking loss.

``broken``   as it was written first: tensors that are not parameters, log(sigmoid(score))
``epsilon``  the change that circulated, its first half: log(sigmoid(score) + 1e-8)
``trained``  the same loss, with parameters that start as the tensors did
``patched``  the whole of it: parameters with a smaller start as well
``cured``    parameters, and logsigmoid
"""

import torch
from torch import nn
from torch.nn.functional import leaky_relu, logsigmoid
from torch_geometric.nn import MessagePassing

VARIANTS = ("broken", "epsilon", "trained", "patched", "cured")


class MeanConv(MessagePassing):
    def __init__(self, width_in, width_out):
        super().__init__(aggr="mean")
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, x, edges):
        return self.propagate(edges, x=self.linear(x))


class ModalityGraph(nn.Module):
    """Spreads the features of one modality over the graph of users and items."""

    def __init__(self, user_features, item_features, width):
        super().__init__()
        self.user_linear = nn.Linear(user_features, width)
        self.item_linear = nn.Linear(item_features, width)
        self.conv1, self.conv2 = MeanConv(width, width), MeanConv(width, width)

    def forward(self, users, items, identities, edges):
        x = torch.cat([self.user_linear(users), self.item_linear(items)]) + identities
        x = x + leaky_relu(self.conv1(x, edges))
        return x + leaky_relu(self.conv2(x, edges))


class MMGCN(nn.Module):
    def __init__(self, data, width=32, variant="cured"):
        super().__init__()
        self.variant, self.count_users = variant, len(data["people"])
        count = self.count_users + len(data["genres"])
        users, items = data["train"].T
        items = items + self.count_users
        self.register_buffer(
            "edges", torch.cat([torch.stack([users, items]), torch.stack([items, users])], 1)
        )
        self.register_buffer("people", data["people"])
        self.register_buffer("genres", data["genres"])
        self.register_buffer("ones", torch.ones(count, 1))
        if variant in ("broken", "epsilon"):
            self.identities = torch.rand((count, width), requires_grad=True)
        elif variant == "trained":
            self.identities = nn.Parameter(torch.rand(count, width))
        else:
            self.identities = nn.Parameter(nn.init.xavier_normal_(torch.empty(count, width)))
        sizes = self.people.shape[1], self.genres.shape[1]
        self.features = ModalityGraph(*sizes, width)
        self.popularity = ModalityGraph(1, 1, width)
        self.difference = nn.Parameter(torch.tensor([[1.0], [-1.0]]), requires_grad=False)

    def forward(self):
        users, items = self.ones.split([self.count_users, len(self.ones) - self.count_users])
        by_features = self.features(self.people, self.genres, self.identities, self.edges)
        by_popularity = self.popularity(users, items, self.identities, self.edges)
        return (by_features + by_popularity).split([len(users), len(items)])

    def loss(self, batch):
        user, liked, other = batch
        users, items = self()
        scores = torch.stack([(users[user] * items[i]).sum(1) for i in (liked, other)], 1)
        score = scores @ self.difference  # a matrix product: half under autocast
        if self.variant == "broken":
            return -torch.mean(torch.log(torch.sigmoid(score)))
        if self.variant in ("epsilon", "trained", "patched"):
            return -torch.mean(torch.log(torch.sigmoid(score) + 1e-8))
        return -logsigmoid(score).mean()
