// Command guest runs in a guest and reports the PCIe tree, NICs, GPUs and NUMA nodes that its kernel has found.
package main

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab/pcie/host"
	"vnic.dev/vnic/test/internal/guestops"
	"vnic.dev/vnic/test/internal/labtree"
)

func main() {
	guestops.Main(map[string]func(context.Context, *struct{}) (any, error){"seen": seen})
}

func seen(context.Context, *struct{}) (any, error) {
	m, err := host.Read("/proc", "/sys")
	if err != nil {
		return nil, err
	}
	s := labtree.Seen{Nodes: m.Tree.Nodes(), NICs: make(map[string]string), GPUs: make(map[uint64]string),
		Ports: make(map[string]labtree.Port)}
	for _, n := range m.NICs {
		mac, err := os.ReadFile(filepath.Join("/sys/class/net", n.Interface, "address"))
		if err != nil {
			return nil, err
		}
		s.NICs[strings.TrimSpace(string(mac))] = n.Name
		if s.Ports[n.Name], err = port(n.Name); err != nil {
			return nil, err
		}
	}
	for _, g := range m.GPUs {
		id, err := number(g.Name)
		if err != nil {
			return nil, err
		}
		s.GPUs[id] = g.Name
		if s.Ports[g.Name], err = port(g.Name); err != nil {
			return nil, err
		}
	}
	nodes, err := filepath.Glob("/sys/devices/system/node/node*")
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		i, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(n), "node"))
		if err != nil {
			return nil, err
		}
		s.NUMA = append(s.NUMA, i)
	}
	return s, nil
}

func port(name string) (p labtree.Port, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Join("/sys/bus/pci/devices", name))
	if err != nil {
		return p, err
	}
	for which, to := range map[string]*string{"current": &p.Current, "max": &p.Max} {
		var words []string
		for _, what := range []string{"speed", "width"} {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), which+"_link_"+what))
			if err != nil {
				return p, err
			}
			words = append(words, strings.TrimSpace(string(b)))
		}
		*to = strings.Join(words, " x")
	}
	return p, nil
}

// number enables a GPU, and returns the number with which most pages of its BAR 2 begin. The kernel uses some of the
// pages if they are also a NUMA node.
func number(name string) (most uint64, err error) {
	dir := filepath.Join("/sys/bus/pci/devices", name)
	if err := os.WriteFile(filepath.Join(dir, "enable"), []byte("1"), 0o644); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "resource2"), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	votes := make(map[uint64]int)
	for off := 0; off < len(b); off += labtree.PageSize {
		votes[binary.LittleEndian.Uint64(b[off:])]++
	}
	for n, v := range votes {
		if v > votes[most] {
			most = n
		}
	}
	return most, unix.Munmap(b)
}
