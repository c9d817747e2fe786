package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
)

// kernelArgs are for every guest: among others, few messages on the slow serial line, no self-test of ciphers, and a
// reset after a kernel error, which ends QEMU (-no-reboot).
const kernelArgs = "console=ttyS0 quiet panic=-1 oops=panic cryptomgr.notests no_timer_check random.trust_cpu=on"

// tscUnstable stops a kernel from using the TSC as its clock. With two emulated CPUs on busy machines the
// kernel's clock ran ten times too fast, and the kernel hung at boot: two CPUs compare their TSCs with
// interrupts off, up to a limit of the current clock (kernel/time/clocksource.c, watchdog_wait_seq), which
// early is jiffies and does not advance.
const tscUnstable = "tsc=unstable"

// ClockArgs returns the kernel arguments that keep the clock right with so many CPUs; AccelAuto counts as
// emulation.
func ClockArgs(cpus int, accel Accel) string {
	if cpus > 1 && accel != AccelKVM {
		return tscUnstable
	}
	return ""
}

// ForMachine adds the word of ClockArgs to a kernel's command line if these CPUs need it, or else removes it.
func ForMachine(line string, cpus int, accel Accel) string {
	words := strings.Split(line, " ")
	i := slices.Index(words, tscUnstable)
	switch needed := ClockArgs(cpus, accel) != ""; {
	case needed && i < 0:
		words = append(words, tscUnstable)
	case !needed && i >= 0:
		words = slices.Delete(words, i, i+1)
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

func (c *Config) kernelArgs(accel Accel) string {
	more := strings.TrimSpace(ClockArgs(c.CPUs, accel) + " " + c.Append)
	if c.IOMMU {
		more = iommuKernelArgs + " " + more
	}
	return kernelWords(slices.ContainsFunc(c.GPUs, func(g GPU) bool { return g.Node }), more)
}

// iommu is the -device option of QEMU's IOMMU, which comes before the devices that use it. Without caching mode QEMU
// refuses VFIO devices (hw/i386/intel_iommu.c, vtd_iommu_notify_flag_changed). With KVM, interrupt remapping would need
// kernel-irqchip=split.
const iommu = "intel-iommu,caching-mode=on,intremap=off"

// iommuKernelArgs make Linux translate devices' addresses by the IOMMU
// (Documentation/admin-guide/kernel-parameters.txt).
const iommuKernelArgs = "intel_iommu=on iommu.passthrough=0"

// KernelArgs returns the kernel command line for a QEMU that the user starts, with more at its end; node: a GPU is a
// NUMA node.
func KernelArgs(node bool, more string) string {
	return kernelWords(node, ClockArgs(2, AccelAuto)+" "+more)
}

// kernelWords returns kernelArgs with more at its end. If node, it turns off KASLR, which could put the kernel into a
// GPU's NUMA node.
func kernelWords(node bool, more string) string {
	args := kernelArgs
	if node {
		args += " nokaslr"
	}
	return strings.TrimSpace(args + " " + more)
}

// files are inherited by QEMU from descriptor 3 on (exec.Cmd.ExtraFiles), unless foreign.
type files struct {
	list    []*os.File
	foreign bool // another program starts QEMU, which opens them through /proc
}

func (f *files) add(x *os.File) int {
	f.list = append(f.list, x)
	return 2 + len(f.list)
}

func (f *files) path(x *os.File) string {
	if f.foreign {
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), x.Fd())
	}
	return fdPath(f.add(x))
}

func (f *files) ram(id string, size uint64, ram []*os.File, i int) string {
	if f.foreign {
		return fmt.Sprintf("memory-backend-memfd,id=%s,size=%d,share=on", id, size)
	}
	return MemoryFile(id, size, f.path(ram[i]))
}

// inherited has the files that QEMU inherits, besides the Config's, and whether it has a sandbox.
type inherited struct {
	ram      []*os.File // of Machine.RAM
	initrd   *os.File
	channels []channel
	sandbox  bool // QEMU has -sandbox
}

// channel is QEMU's end of a socket to this process.
type channel struct {
	name string
	file *os.File
}

// Channels of a machine.
const (
	consoleChannel = "console"
	resultsChannel = "results"
	qmpChannel     = "qmp"
	portChannel    = "port" // for Config.ResultsPort
)

// behind are the arguments for what uses each channel: a device or QMP.
var behind = map[string][]string{
	consoleChannel: {"-serial", "chardev:console"},
	resultsChannel: {"-serial", "chardev:results"},
	qmpChannel:     {"-qmp", "chardev:qmp"},
	portChannel: {"-device", "virtio-serial-pci,id=ports",
		"-device", "virtserialport,chardev=port,name=" + agent.PortName},
}

// comma escapes commas for QEMU's option lists.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func fdPath(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }

// cpus returns the -smp argument. With one CPU and no slot for a second, TCG translates locked instructions
// to plain loads and stores without a barrier: for a device in another process, a store of avail.idx and a
// load of avail_event may be reordered, and a kick is lost.
func cpus(n int, accel Accel) string {
	if spareCPU(n, accel) {
		return "1,maxcpus=2"
	}
	return strconv.Itoa(n)
}

func spareCPU(n int, accel Accel) bool { return n == 1 && accel != AccelKVM }

// arguments returns QEMU's arguments, and the files that it inherits. c.complete has returned nil;
// accel is not AccelAuto.
func arguments(c *Config, accel Accel, in inherited) ([]string, []*os.File) {
	var f files
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-name", "guest=" + comma(c.Name) + ",debug-threads=on",
		"-smp", cpus(c.CPUs, accel),
	}
	if in.sandbox {
		args = append(args, "-sandbox", sandbox)
	}
	args = append(args, c.memory(&f, in.ram, accel)...)
	args = append(args, "-kernel", c.Kernel.Boots(), "-initrd", fdPath(f.add(in.initrd)), "-append", c.kernelArgs(accel))
	for _, ch := range in.channels {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=%s,fd=%d", ch.name, f.add(ch.file)))
		args = append(args, behind[ch.name]...)
	}
	if accel == AccelKVM {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", c.emulatedCPU())
	}
	args = append(args, c.devices(&f)...)
	return append(args, c.Args...), f.list
}

// devices returns the arguments for IOMMU, tree, GPUs, NICs and disks. Disks come last, so the others' PCI
// addresses do not depend on them.
func (c *Config) devices(f *files) []string {
	var args []string
	if c.IOMMU {
		args = append(args, "-device", iommu)
	}
	args = append(args, c.tree()...)
	for i, g := range c.GPUs {
		id := "gpu" + strconv.Itoa(i)
		switch {
		case !g.Node:
			args = append(args, BARArgs(id, g.Size, f.path(g.File), c.on(g.Place))...)
		case c.Tree != nil: // a BAR at the place of a GPU that is a node
			bar := uint64(1) << (bits.Len64(g.Size) - 1)
			args = append(args, BARArgs("place-"+id, bar, f.path(g.File), c.on(g.Place))...)
		}
	}
	for i, n := range c.Netdevs {
		args = append(args, n.args("net"+strconv.Itoa(i), f, c.on(n.Place))...)
	}
	return append(args, c.disks(f)...)
}

func (c *Config) emulatedCPU() string {
	if c.ForwardsP2P {
		return "max,family=23" // Zen's
	}
	return "max"
}

// MachineArgs returns the arguments for the machine, without kernel and initramfs, for a QEMU that another
// program starts. QEMU opens files through this process's descriptors, and allocates the RAM itself.
func (c *Config) MachineArgs() ([]string, error) {
	if err := errors.Join(c.checkTree(), c.checkDisks()); err != nil {
		return nil, err
	}
	f := &files{foreign: true}
	args := append([]string{"-smp", cpus(c.CPUs, AccelTCG)}, c.memory(f, nil, AccelTCG)...)
	if c.ForwardsP2P {
		args = append(args, "-cpu", c.emulatedCPU())
	}
	return append(args, c.devices(f)...), nil
}

// memory returns the arguments for machine type and memory: NUMA nodes if there is a Tree or a GPU's node.
func (c *Config) memory(f *files, ram []*os.File, accel Accel) []string {
	machine := "q35,usb=off,sata=off,smm=off,vmport=off"
	if f.foreign {
		machine = "q35"
	}
	total := c.RAMSize
	var args []string
	last := c.CPUs - 1
	if spareCPU(c.CPUs, accel) {
		last++
	}
	nodes := []string{"-numa", fmt.Sprintf("node,nodeid=0,cpus=0-%d,memdev=ram", last)}
	var sockets []string // by node
	if c.Tree == nil {
		args = []string{"-object", f.ram("ram", c.RAMSize, ram, 0)}
	} else {
		args, nodes = c.nodes(f, ram, last+1)
		for _, s := range c.Tree.Children("") {
			sockets = append(sockets, s.Name)
		}
	}
	for i, g := range c.GPUs {
		if g.Node {
			id := "gpu" + strconv.Itoa(i)
			args = append(args, "-object", MemoryFile(id, g.Size, f.path(g.File)))
			nodes = append(nodes, "-numa", fmt.Sprintf("node,nodeid=%d,memdev=%s", len(nodes)/2, id))
			total += g.Size
			if c.Tree != nil {
				sockets = append(sockets, c.Tree.SocketOf(g.Place))
			}
		}
	}
	nodes = append(nodes, distances(sockets)...)
	size := "size=" + strconv.FormatUint(total>>20, 10) + "M"
	if len(nodes) == 2 {
		return append([]string{"-M", machine + ",memory-backend=ram", "-m", size}, args...)
	}
	return append(append([]string{"-M", machine, "-m", size}, args...), nodes...)
}

// MemoryFile returns the -object argument for shared memory in a file.
func MemoryFile(id string, size uint64, path string) string {
	return fmt.Sprintf("memory-backend-file,id=%s,size=%d,mem-path=%s,share=on", id, size, comma(path))
}

// BARArgs returns the arguments for GPU memory as a BAR. options for the device begin with a comma, or are "".
func BARArgs(id string, size uint64, path, options string) []string {
	return []string{"-object", MemoryFile(id, size, path),
		"-device", fmt.Sprintf("ivshmem-plain,id=dev-%s,memdev=%s%s", id, id, options)}
}

// complete fills in defaults, and checks what QEMU would report less clearly.
func (c *Config) complete() error {
	if len(c.QEMU.Args) == 0 {
		return fmt.Errorf("config: no QEMU: %w", assets.ErrNoQEMU)
	}
	if c.Kernel.Image == "" {
		return fmt.Errorf("config: no kernel: %w", assets.ErrNoKernel)
	}
	c.Name = cmp.Or(c.Name, "guest")
	c.RAMSize = cmp.Or(c.RAMSize, 512<<20)
	c.CPUs = cmp.Or(c.CPUs, 1)
	if c.RAMSize%(2<<20) != 0 {
		return fmt.Errorf("config: guest RAM of %d bytes is not a multiple of 2 MiB", c.RAMSize)
	}
	for i, g := range c.GPUs {
		if g.Node && (g.File == nil || g.Size == 0 || g.Size%(2<<20) != 0) {
			return fmt.Errorf("config: GPU %d: a file and a size that is a multiple of 2 MiB are needed, for a NUMA node", i)
		}
		if !g.Node && (g.File == nil || g.Size < 4096 || g.Size&(g.Size-1) != 0) {
			return fmt.Errorf("config: GPU %d: a file and a size that is a power of two are needed, for a BAR", i)
		}
		st, err := g.File.Stat()
		if err == nil && uint64(st.Size()) < g.Size {
			err = fmt.Errorf("file of %d bytes, %d needed", st.Size(), g.Size)
		}
		if err != nil {
			return fmt.Errorf("config: GPU %d: %w", i, err)
		}
	}
	if err := cmp.Or(c.checkTree(), c.checkHotplug(), c.checkDisks()); err != nil {
		return err
	}
	c.Netdevs = slices.Clone(c.Netdevs) // the elements belong to the caller
	for i := range c.Netdevs {
		n := &c.Netdevs[i]
		if n.VFIOUser {
			if err := assets.CheckVersion(c.QEMU.Version, assets.MinVFIOUser); err != nil {
				return err
			}
		}
		if (n.Connected == nil) == (n.Path == "") {
			return fmt.Errorf("config: network device %d: either Connected or Path", i)
		}
		if n.MAC != nil && (len(n.MAC) != 6 || n.MAC[0]&1 != 0) {
			return fmt.Errorf("config: network device %d: %s is no MAC address of a device", i, net.HardwareAddr(n.MAC))
		}
	}
	return nil
}
