"""commd: collectives for training processes, carried out by the node's commd.

PyTorch: nothing to import. With this package installed (torch >= 2.5),

    torch.distributed.init_process_group("commd")

works in any program that torchrun starts. Where TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set, or torch
is older, `import commd.torch` registers the backend.

The local daemon is found through $COMMD_SOCKET, else /run/commd/commd.sock; where none
runs, one is started for this user, on this node alone (COMMD_AUTOSTART=0 forbids it).
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
