# etc/: the configuration as shipped, every key commented out. Keeping a changed one over an
# upgrade is the packages' business (conffiles).
commdconfdir = $(sysconfdir)/commd
dist_commdconf_DATA = etc/commd.yaml
dist_man_MANS += etc/commd.yaml.5

# For Grafana: doc/metrics.md.
dist_pkgdata_DATA = etc/grafana-commd.json etc/commd-alerts.yaml
