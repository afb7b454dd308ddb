"""Captures graphs of its own, into which it copies its inputs."""

import torch

graphs = {}


def run(x, weight):
    if torch.cuda.is_current_stream_capturing():
        return x @ weight.t()
    key = x.shape, weight.shape
    if key not in graphs:
        mine, graph = (x.clone(), weight.clone()), torch.cuda.CUDAGraph()
        _ = mine[0] @ mine[1].t()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = mine[0] @ mine[1].t()
        graphs[key] = graph, mine, y
    graph, mine, y = graphs[key]
    mine[0].copy_(x)
    mine[1].copy_(weight)
    graph.replay()
    return y.clone()
