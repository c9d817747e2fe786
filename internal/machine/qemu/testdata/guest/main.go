// Command guest is the program of the guests of package qemu's tests. Besides an agent's operations it has
// one that makes the guest fail, and one that examines a NUMA node's memory.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/boot"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/kernelnic"
)

func main() {
	agent.Register("crash", opCrash)
	agent.Register("node", opNode)
	os.Exit(boot.Main(os.Args))
}

func opCrash(_ context.Context, args json.RawMessage) (any, error) {
	var how string
	if err := json.Unmarshal(args, &how); err != nil {
		return nil, err
	}
	switch how {
	case "panic": // of the agent
		go panic("asked to crash")
	case "kernel":
		return nil, os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	case "reset":
		return nil, unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	default:
		return nil, fmt.Errorf("crash how? %q", how)
	}
	select {}
}

// node has opNode's arguments and results.
type node struct {
	Base, GPU uint64 // physical address and size of the node's memory
	Window    uint64 // size

	Extents  []kernelnic.Extent
	Policies map[string]int // number of mappings of all processes, by policy; the window's begin with "window "
	Node1    []string       // mappings with pages of node 1, except the window's and /init's
	Free     string         // meminfo of node 1, before the window exists
}

// opNode makes a kernelnic.Window on node 1, marks its pages, checks the marks through a dma-buf, and looks for other
// memory on the node.
func opNode(_ context.Context, args json.RawMessage) (any, error) {
	var n node
	if err := json.Unmarshal(args, &n); err != nil {
		return nil, err
	}
	info, err := os.ReadFile("/sys/devices/system/node/node1/meminfo")
	if err != nil {
		return nil, err
	}
	n.Free = string(info)
	w, err := kernelnic.NewWindow(3, 1, n.Window, []control.GPUMap{{GPU: 3, IOVA: n.Base, Size: n.GPU}})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, n.Free)
	}
	n.Extents = w.Extents()
	for off := int64(0); off < int64(w.Size()); off += 4096 {
		if _, err := w.WriteAt(fmt.Appendf(nil, "page %10d", off/4096), off); err != nil {
			return nil, err
		}
	}
	if err := throughDMABuf(w); err != nil {
		return nil, err
	}
	if err := n.look(); err != nil {
		return nil, err
	}
	return n, w.Close()
}

// throughDMABuf checks the marks of the window's pages, except the first one's, through a dma-buf.
func throughDMABuf(w *kernelnic.Window) (err error) {
	const skip = 4096
	fd, err := w.DMABuf(skip, w.Size()-skip)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	b, err := unix.Mmap(fd, 0, int(w.Size()-skip), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map dma-buf: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(b)) }()
	for off := 0; off < len(b); off += 4096 {
		if want := fmt.Appendf(nil, "page %10d", (off+skip)/4096); !bytes.HasPrefix(b[off:], want) {
			return fmt.Errorf("dma-buf at %#x: %q, not %q", off, b[off:off+16], want)
		}
	}
	return nil
}

// look sets Policies and Node1 from the mappings of all processes (Linux
// Documentation/admin-guide/mm/numa_memory_policy.rst).
func (n *node) look() error {
	n.Policies = map[string]int{}
	files, err := filepath.Glob("/proc/[0-9]*/numa_maps")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			words := strings.Fields(line)
			if strings.Contains(line, "/memfd:gpu") {
				n.Policies["window "+words[1]]++
				continue
			}
			n.Policies[words[1]]++
			// /init was unpacked before a task could be bound to a node.
			if strings.Contains(line, " N1=") && !strings.Contains(line, " file=/init ") {
				n.Node1 = append(n.Node1, f+": "+strings.TrimSpace(line))
			}
		}
	}
	return nil
}
