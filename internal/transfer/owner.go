package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// OwnerName is the argv[0] with which a guest's program runs Owner.
const OwnerName = "vnic-memory-owner"

// ownerFile is the descriptor of the GPU's device in the owner's process.
const ownerFile = 3

// owner is a separate process that has an RDMA's memory on demand, so that KillOwner can kill it. The Node's process
// answers the NIC's page requests for that memory, also after the kill.
type owner struct {
	proc *os.Process
	in   io.WriteCloser // stdin; the process exits when it is closed
}

// ownerRegion is the first line of the owner's output: the id of its gpudriver.Region, or an error.
type ownerRegion struct {
	ID    uint32 `json:"id"`
	Error string `json:"error,omitempty"`
}

// startOwner starts an owner process, which allocates size bytes and opens a region of them, and returns the region's
// id.
func startOwner(f *gpudriver.File, size uint64) (o *owner, region uint32, err error) {
	fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	gpu := os.NewFile(uintptr(fd), "vnicgpu")
	defer gpu.Close()
	c := &exec.Cmd{Path: "/proc/self/exe", Args: []string{OwnerName, fmt.Sprint(size)}, Dir: "/", Stderr: os.Stderr,
		ExtraFiles: []*os.File{gpu}}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("start %s: %w", OwnerName, err)
	}
	defer out.Close()
	o = &owner{c.Process, in}
	var r ownerRegion
	err = json.NewDecoder(out).Decode(&r)
	if r.Error != "" {
		err = errors.New(r.Error)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%s: %w", OwnerName, err), o.close())
	}
	return o, r.ID, nil
}

// storm makes the process move pages until it exits.
func (o *owner) storm(s Storm) error { return json.NewEncoder(o.in).Encode(s) }

// kill kills the process, and returns how long its exit took. During the exit Linux makes the NIC stop using the
// process's memory.
func (o *owner) kill() (took time.Duration, err error) {
	begin := time.Now()
	if err := o.proc.Kill(); err != nil {
		return 0, err
	}
	_, err = o.proc.Wait()
	return time.Since(begin), err
}

func (o *owner) close() error {
	err := o.in.Close()
	if _, e := o.proc.Wait(); e != nil && !errors.Is(e, os.ErrProcessDone) && !errors.Is(e, syscall.ECHILD) &&
		!errors.Is(e, syscall.EINVAL) { // these errors: kill has waited for it before
		err = errors.Join(err, e)
	}
	return err
}

// Owner is the program of the owner process: it opens a region of memory, of the size in the argument, and keeps it
// until its stdin ends. A line of stdin is a Storm, which it starts; it ends with an error if there is a second.
func Owner(args []string) int {
	err := errors.New("not to be started by hand")
	var size int
	if len(args) == 1 {
		_, err = fmt.Sscan(args[0], &size)
	}
	if err == nil {
		err = runOwner(os.Stdin, os.Stdout, gpudriver.FromFD(ownerFile), size)
	}
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(ownerRegion{Error: err.Error()})
		return 1
	}
	return 0
}

func runOwner(in io.Reader, out io.Writer, f *gpudriver.File, size int) error {
	o := &onDemand{file: f}
	var err error
	if o.memory, err = allocate(f, size); err != nil {
		return err
	}
	r, err := f.OpenRegion(o.memory)
	if err == nil {
		err = json.NewEncoder(out).Encode(ownerRegion{ID: r.ID()})
	}
	commands := json.NewDecoder(in)
	for err == nil {
		var s Storm
		if err = commands.Decode(&s); err == nil {
			err = o.startStorm(s)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, o.calm())
}

// allocate allocates memory of this process, and moves it to the GPU as far as there is room.
func allocate(f *gpudriver.File, size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	if _, err := f.ToGPU(b); err != nil && !errors.Is(err, syscall.ENOMEM) {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	return b, nil
}

// Killed describes the end of the owner process. Timeouts and Quarantined are as in ODPStats.
type Killed struct {
	Exit        time.Duration `json:"exit_ns"` // from the signal until the exit
	Timeouts    uint64        `json:"timeouts"`
	Quarantined bool          `json:"quarantined"`
}

// KillOwner kills the owner process, and returns when it has exited. EINVAL: the Node's own process has the memory.
func (n *Node) KillOwner(context.Context) (k Killed, err error) {
	o, err := n.odp("kill the memory's owner")
	if err != nil {
		return k, err
	}
	if o.owner == nil {
		return k, fmt.Errorf("kill the memory's owner: it is this program: %w", syscall.EINVAL)
	}
	if k.Exit, err = o.owner.kill(); err != nil {
		return k, fmt.Errorf("kill the memory's owner: %w", err)
	}
	s, err := o.region.Stats()
	k.Timeouts, k.Quarantined = s.Timeouts, s.Quarantined
	return k, err
}

// Page is a page of memory on demand, by its index.
type Page struct {
	Page int `json:"page"`
}

// hardOffline is a file: Linux treats the page of RAM whose physical address is written to it as broken
// (Documentation/ABI/testing/sysfs-memory-page-offline). MADV_HWPOISON would kill this program.
const hardOffline = "/sys/devices/system/memory/hard_offline_page"

// BreakPage moves a page of memory on demand to RAM and makes Linux treat it as broken.
func (n *Node) BreakPage(_ context.Context, p Page) error {
	o, err := n.odp("break a page")
	if err != nil {
		return err
	}
	pages, _, err := o.region.Fault(uint64(max(p.Page, 0)), 1, true, true)
	if err == nil && pages[0].Kind != gpudriver.RAM { // its address is 0, which is another's page
		err = fmt.Errorf("it is not in RAM: %w", pages[0].Err)
	}
	if err == nil {
		err = os.WriteFile(hardOffline, fmt.Appendf(nil, "%#x", pages[0].Addr), 0)
	}
	if err != nil {
		return fmt.Errorf("break page %d: %w", p.Page, err)
	}
	return nil
}

// Bytes is a part of memory on demand.
type Bytes struct {
	Off  uint64 `json:"off"`
	Len  uint64 `json:"len"`
	Data []byte `json:"data,omitempty"`
}

// MaxRead bounds one ReadODP, in bytes.
const MaxRead = 512 << 10

// ReadODP returns a part of this process's memory on demand: Data is the memory itself, whose pages move to RAM when
// the CPU reads them. EINVAL: the part is longer than MaxRead or not in the memory, or an owner has the memory.
func (n *Node) ReadODP(_ context.Context, b Bytes) (Bytes, error) {
	o, err := n.odp("read memory on demand")
	if err != nil {
		return b, err
	}
	if size := uint64(len(o.memory)); b.Off > size || b.Len > size-b.Off || b.Len > MaxRead {
		return b, fmt.Errorf("read [%#x, +%#x) of %#x bytes: %w", b.Off, b.Len, size, syscall.EINVAL)
	}
	b.Data = o.memory[b.Off : b.Off+b.Len]
	return b, nil
}
