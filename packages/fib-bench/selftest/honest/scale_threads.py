import threading

import torch


def run(x):
    y = torch.empty_like(x)
    parts = zip(x.chunk(4), y.chunk(4), strict=True)
    threads = [threading.Thread(target=torch.mul, args=(source, 2), kwargs={"out": target}) for source, target in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return y
