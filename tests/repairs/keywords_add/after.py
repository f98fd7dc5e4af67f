# add_keyword(name="zero_infinity", value="True", functions=("CTCLoss",))
from torch import nn

loss = nn.CTCLoss(blank=0, zero_infinity=True)  # here
