"""Attention over a sequence that is split among the ranks: keys and values go round a ring.

And the other way to split it, by heads, for which all_to_all turns rows into heads and back.
"""

import torch
import torch.distributed as dist

from checks import BACKEND, close, drawn

HEADS, ROWS, WIDTH = 8, 32, 4


def whole():
    generator = torch.Generator().manual_seed(11)
    return drawn(torch.randn, 3, HEADS, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def ring(q, k, v):
    rank, size = dist.get_rank(), dist.get_world_size()
    best = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
    weight, out = torch.zeros_like(best), torch.zeros_like(q)
    for step in range(size):
        if step + 1 < size:
            next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            to, frm = (rank + 1) % size, (rank - 1) % size
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, k, to), dist.P2POp(dist.isend, v, to),
                dist.P2POp(dist.irecv, next_k, frm), dist.P2POp(dist.irecv, next_v, frm),
            ])  # fmt: skip
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5
        top = torch.maximum(best, scores.amax(-1))
        old, new = torch.exp(best - top), torch.exp(scores - top[..., None])
        weight = weight * old + new.sum(-1)
        out = out * old[..., None] + new @ v
        best = top
        if step + 1 < size:
            for work in works:
                work.wait()
            k, v = next_k, next_v
    return out / weight[..., None]


def by_heads(q, k, v):
    """Rows of all heads -> all rows of some heads -> back."""
    size = dist.get_world_size()

    def to_heads(t):
        out = torch.empty_like(t)
        dist.all_to_all_single(out, t.contiguous())  # heads are the first dimension
        return torch.cat(out.chunk(size), dim=1)

    def to_rows(t):
        t = torch.cat(t.chunk(size, dim=1), dim=0).contiguous()
        out = torch.empty_like(t)
        dist.all_to_all_single(out, t)
        return out

    return to_rows(
        torch.nn.functional.scaled_dot_product_attention(to_heads(q), to_heads(k), to_heads(v))
    )


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    q, k, v = whole()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v).chunk(size, dim=1)[rank]
    mine = [t.chunk(size, dim=1)[rank].contiguous() for t in (q, k, v)]
    close("ring attention", ring(*mine), want, 1e-10, 1e-12)
    close("attention by heads", by_heads(*mine), want, 1e-10, 1e-12)
    dist.destroy_process_group()


main()
