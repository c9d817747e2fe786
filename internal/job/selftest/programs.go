package selftest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets/selftests"
)

// collections maps collections in kselftest-list.txt to the prefixes of their programs' names.
var collections = map[string]string{"drivers/net": "", "drivers/net/hw": "hw/"}

// NotForUs maps programs that run only if the user names them to the reason why.
var NotForUs = map[string]string{
	"hw/devlink_port_split.py":     "for switches with devlink ports",
	"hw/devlink_rate_cross_esw.py": "for NICs with several eswitches, in a bond",
	"hw/devlink_rate_tc_bw.py":     "for NICs with SR-IOV and devlink rates; wants an interface of one of these",
	"hw/ethtool.sh":                "for pairs of ports that are joined by a cable, with speeds to choose from",
	"hw/ethtool_extended_state.sh": "for pairs of ports that are joined by a cable",
	"hw/ethtool_mm.sh":             "for NICs with frame preemption",
	"hw/ethtool_rmon.sh":           "for NICs with RMON counters",
	"hw/ethtool_std_stats.sh":      "for NICs with the counters of IEEE 802.3",
	"hw/hw_stats_l3.sh":            "for switches that forward in hardware",
	"hw/hw_stats_l3_gre.sh":        "for switches that forward in hardware",
	"hw/ipsec_vxlan.py":            "for NICs with IPsec",
	"hw/loopback.sh":               "for pairs of ports that are joined by a cable",
	"netpoll_basic.py":             "it wants bpftrace",
	"psp.py":                       "for NICs with PSP, and a kernel with CONFIG_INET_PSP",
	"macsec.py":                    "for NICs with MACsec",
}

// smallFrames maps models of vnic to programs that run with the NICs' maximum MTU set to their MTU: gve accepts an
// AF_XDP pool only if the longest possible frame fits a buffer of the pool (gve_main.c, gve_xsk_pool_enable).
var smallFrames = map[string][]string{lab.GVE: {"hw/xsk_reconfig.py"}}

type program struct {
	name string   // path below drivers/net, as "hw/csum.py"
	only []string // cases that the user named, or patterns of cases; nil: the whole program
}

func (p *program) dir() string { return path.Join("drivers/net", path.Dir(p.name)) }

func (p *program) patches() []string {
	return selftests.Changing(path.Join(p.dir(), path.Base(p.name)))
}

func (p *program) isDevmem() bool { return strings.Contains(path.Base(p.name), "devmem") }

// listed returns the programs in text whose collection is a key of the map collections, sorted. text is
// kselftest-list.txt, which has lines COLLECTION:FILE.
func listed(text string) (list []string) {
	for line := range strings.Lines(text) {
		collection, file, _ := strings.Cut(strings.TrimSpace(line), ":")
		if prefix, known := collections[collection]; known && file != "" {
			list = append(list, prefix+file)
		}
	}
	slices.Sort(list)
	return list
}

// choose returns the programs that args name as PROGRAM or PROGRAM:CASE, each program once; without args it returns
// all that are not in NotForUs.
func choose(all, args []string) (list []program, err error) {
	if len(args) == 0 {
		for _, name := range all {
			if NotForUs[name] == "" {
				list = append(list, program{name: name})
			}
		}
		return list, nil
	}
	for _, arg := range args {
		name, one, hasCase := strings.Cut(arg, ":")
		full, err := find(all, name)
		if err != nil {
			return nil, err
		}
		if hasCase && one == "" {
			return nil, fmt.Errorf("%s: which case? vnic selftest --list %s names them", arg, name)
		}
		i := slices.IndexFunc(list, func(p program) bool { return p.name == full })
		if i < 0 {
			list = append(list, program{name: full})
			i = len(list) - 1
		} else if list[i].only == nil || !hasCase {
			list[i].only = nil
			continue
		}
		if hasCase {
			list[i].only = append(list[i].only, one)
		}
	}
	return list, nil
}

// find returns the full name of a program, as "hw/csum.py" for "csum.py" or "csum". It is an error if no program
// matches, or if several match and name is no full name, with or without extension.
func find(all []string, name string) (string, error) {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "./"), "drivers/net/")
	var found []string
	for _, p := range all {
		if p == name || strings.TrimSuffix(p, path.Ext(p)) == name {
			return p, nil
		}
		base := path.Base(p)
		if base == name || strings.TrimSuffix(base, path.Ext(base)) == name {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("%s: this kernel's tests have no such program: vnic selftest --list names them", name)
	}
	return "", fmt.Errorf("%s: which? %s", name, strings.Join(found, " or "))
}
