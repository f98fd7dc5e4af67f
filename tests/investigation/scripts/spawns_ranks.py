import torch.multiprocessing as mp


def work(rank):
    print("rank", rank)


if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
