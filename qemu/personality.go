package qemu

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// A personality of the NIC, and what guests need for it: of QEMU a version, of their kernel a module.
var personalities = []struct{ nic, oldest, module string }{
	{"virtio", MinQEMU, "uio_pci_generic"},
	{"gve", MinVFIOUser, "gve"},
}

// personalities says which NICs a guest can have. b is the QEMU of a run that does not say; a cached one that is newer serves
// where that is too old.
func (d *doctor) personalities(b Binary, k Kernel, have *resolved) {
	for _, p := range personalities {
		version := b.Version
		if older(version, p.oldest) && have.QEMU != nil {
			version = strings.TrimPrefix(upstream(have.QEMU.Version), "v")
		}
		name := "nic " + p.nic
		switch module := k.module(p.module); {
		case version == "" || k.Image == "":
			d.add(name, Worse, "QEMU or a guest kernel is missing", "the first run fetches both; see above")
		case older(version, p.oldest):
			d.add(name, Worse, fmt.Sprintf("QEMU %s is older than %s", version, p.oldest), "the first run with --nic "+p.nic+" fetches a newer one")
		case !module:
			d.add(name, Lacking, fmt.Sprintf("kernel %s has no module %s", k.Version, p.module), "give another kernel, or none and one is fetched")
		default:
			d.add(name, Good, fmt.Sprintf("QEMU %s, kernel %s", version, k.Version), "")
		}
	}
}

// module says whether a kernel comes with a module.
func (k Kernel) module(name string) bool {
	found := false
	_ = filepath.WalkDir(k.Modules, func(path string, e fs.DirEntry, err error) error {
		if err != nil || found {
			return fs.SkipAll
		}
		base, rest, _ := strings.Cut(e.Name(), ".ko")
		found = strings.ReplaceAll(base, "-", "_") == name && slices.Contains([]string{"", ".xz", ".gz", ".zst"}, rest) && e.Type().IsRegular()
		return nil
	})
	return found
}
