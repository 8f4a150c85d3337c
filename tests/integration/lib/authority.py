"""A CA for tests, by the commands of doc/operations.md, "Certificates"."""

import os
import shutil
import subprocess
import time

from cluster import Cluster, Skip

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
LIST = """[ca]
default_ca = list
[list]
database = index.txt
default_md = sha256
# for issue_between() alone:
new_certs_dir = .
rand_serial = yes
copy_extensions = copy
policy = any
[any]
commonName = supplied
"""


class Authority:
    def __init__(self, folder, name="CA of cluster test"):
        if not shutil.which("openssl"):
            raise Skip("no openssl here")
        self.folder = folder
        os.mkdir(folder)
        self.openssl(
            "req", "-x509", *CURVE, "-keyout", "ca.key", "-out", "ca.crt", "-days", "3650",
            "-subj", f"/CN={name}",
        )  # fmt: skip
        for file, text in (("list.cnf", LIST), ("index.txt", "")):
            with open(self.path(file), "w") as out:
                out.write(text)

    def path(self, file):
        return os.path.join(self.folder, file)

    def openssl(self, *words):
        done = subprocess.run(
            ["openssl", *words], cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"openssl {' '.join(words)}: {done.stdout}")

    def issue(self, name, days=365):
        """Makes name.crt and name.key anew."""
        self.openssl(
            "req", *CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName=DNS:{name}",
        )  # fmt: skip
        self.openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days",
            str(days), "-copy_extensions", "copy", "-out", f"{name}.crt",
        )  # fmt: skip

    def issue_between(self, name, since, until):
        """Makes name.crt anew, valid from @since to @until days from now on."""
        dates = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + 86400 * days))
                 for days in (since, until)]  # fmt: skip
        self.by_list("-in", f"{name}.csr", "-out", f"{name}.crt", "-batch", "-notext",
                     "-startdate", dates[0], "-enddate", dates[1])  # fmt: skip

    def by_list(self, *words):
        self.openssl("ca", "-config", "list.cnf", "-keyfile", "ca.key", "-cert", "ca.crt", *words)

    def revoke(self, name):
        self.by_list("-revoke", f"{name}.crt")

    def write_list(self):
        """Makes revoked.crl anew."""
        self.by_list("-gencrl", "-crldays", "30", "-out", "revoked.crl")


class Certified(Cluster):
    """Each node has a folder of certificates of its own, outside of its home."""

    authentication = "certificate"

    def __enter__(self):
        self.ca = None
        return super().__enter__()

    def make_node(self, index, address, port):
        node = super().make_node(index, address, port)
        if not self.ca:
            self.ca = Authority(os.path.join(self.folder, "ca"))
        node.files = os.path.join(self.folder, f"files-of-{node.name}")
        os.mkdir(node.files)
        node.authentication = self.authentication
        node.crl = ""
        self.ca.issue(node.name)
        self.give(node)
        write = node.write_config
        node.write_config = lambda **changes: write(
            **{**changes, "cluster": {**self.settings(node), **changes.get("cluster", {})}}
        )
        return node

    @staticmethod
    def settings(node):
        return {
            "authentication": node.authentication,
            "certificate": os.path.join(node.files, "node.crt"),
            "certificate_key": os.path.join(node.files, "node.key"),
            "ca": os.path.join(node.files, "ca.crt"),
            "crl": f'"{node.crl}"',
        }

    def give(self, node, name=None, authority=None):
        """The certificate of @name, signed by @authority, that of the cluster if not said."""
        signer, name = authority or self.ca, name or node.name
        for source, target in (
            (signer.path(f"{name}.crt"), "node.crt"),
            (signer.path(f"{name}.key"), "node.key"),
            (self.ca.path("ca.crt"), "ca.crt"),
        ):
            new = os.path.join(node.files, target + ".new")
            shutil.copyfile(source, new)
            os.chmod(new, 0o400)
            os.rename(new, os.path.join(node.files, target))

    def give_cas(self, node, *authorities):
        """Those who may sign."""
        new = os.path.join(node.files, "ca.crt.new")
        with open(new, "w") as out:
            for authority in authorities:
                with open(authority.path("ca.crt")) as file:
                    out.write(file.read())
        os.rename(new, os.path.join(node.files, "ca.crt"))

    def give_list(self, node):
        self.ca.write_list()
        node.crl = os.path.join(node.files, "revoked.crl")
        shutil.copyfile(self.ca.path("revoked.crl"), node.crl)
        node.write_config()
