#!/usr/bin/env python
# coding: utf-8

# # Training a small model

# In[1]:


import torch
import torch.nn as nn

torch.manual_seed(0)


# In[2]:


model = nn.Linear(8, 1).half()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)


# In[3]:


for i in range(5):
    x = torch.randn(16, 8).half() * 0.001
    y = torch.zeros(16, 1).half()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    opt.step()  # culprit
    opt.zero_grad()


# In[4]:


print(loss)
