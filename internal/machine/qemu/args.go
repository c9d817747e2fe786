package qemu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// kernelArgs is the kernel's command line for every guest: few words on a slow serial line, no
// self-test of ciphers (a fifth of the boot under TCG), and an end instead of a frozen guest when
// the kernel is in trouble: with -no-reboot a reset ends QEMU.
const kernelArgs = "console=ttyS0 quiet panic=-1 oops=panic cryptomgr.notests no_timer_check random.trust_cpu=on"

// tscUnstable keeps a kernel from taking its time from the TSC. Two things were seen on busy machines, with two
// emulated CPUs: the kernel's clock ran ten times too fast (so tsc=nowatchdog, which trusts the TSC, is no cure), and
// the kernel stood still while it booted (1 of 48 boots of two guests; 3 of 17 before the cause was known). Linux 7.2
// and 7.3 have two CPUs compare their TSCs. Each waits for the other with interrupts off and a time limit, which it
// reads from the clock in use (kernel/time/clocksource.c, watchdog_wait_seq). Early in the boot that clock is jiffies,
// which stand still meanwhile, so that the limit never comes when the other CPU is in stop_machine.
const tscUnstable = "tsc=unstable"

// ClockArgs are the words of a kernel's command line that keep its clock right on a machine with so many CPUs; "": none
// are needed. AccelAuto counts as emulation.
func ClockArgs(cpus int, accel Accel) string {
	if cpus > 1 && accel != AccelKVM {
		return tscUnstable
	}
	return ""
}

// ForMachine is a command line of KernelArgs for a machine of which CPUs and accelerator are known: it has the words of
// ClockArgs where they are needed, and only there.
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

// kernelArgs is the command line of a kernel that this process starts.
func (c *Config) kernelArgs(accel Accel) string {
	more := strings.TrimSpace(ClockArgs(c.CPUs, accel) + " " + c.Append)
	if c.IOMMU {
		more = iommuKernelArgs + " " + more
	}
	return kernelWords(slices.ContainsFunc(c.GPUs, func(g GPU) bool { return g.Node }), more)
}

// iommu is QEMU's model of an IOMMU, before all devices that it is for. In caching mode it tells of each map that the
// guest makes, without which QEMU refuses a device of VFIO (hw/i386/intel_iommu.c, vtd_iommu_notify_flag_changed).
// Interrupts are not remapped: that wants another interrupt controller (kernel-irqchip=split) with KVM.
const iommu = "intel-iommu,caching-mode=on,intremap=off"

// iommuKernelArgs are what Linux needs to translate, whatever it was built to do by itself
// (Documentation/admin-guide/kernel-parameters.txt).
const iommuKernelArgs = "intel_iommu=on iommu.passthrough=0"

// KernelArgs is the command line of a kernel whose QEMU the user starts: its CPUs and its accelerator are not known.
// more are words that follow.
func KernelArgs(node bool, more string) string {
	return kernelWords(node, ClockArgs(2, AccelAuto)+" "+more)
}

// kernelWords has the words of every guest before more. A kernel that looks for a random place may find one on a node
// that is a GPU's.
func kernelWords(node bool, more string) string {
	args := kernelArgs
	if node {
		args += " nokaslr"
	}
	return strings.TrimSpace(args + " " + more)
}

// files are the descriptors that QEMU inherits, from 3 on (exec.Cmd.ExtraFiles).
type files struct {
	list    []*os.File
	foreign bool // QEMU is another program's: it opens what this process has
}

func (f *files) add(x *os.File) int {
	f.list = append(f.list, x)
	return 2 + len(f.list)
}

// path is the name of a file for QEMU.
func (f *files) path(x *os.File) string {
	if f.foreign {
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), x.Fd())
	}
	return fdPath(f.add(x))
}

// ram is -object for a part of the RAM.
func (f *files) ram(id string, size uint64, ram []*os.File, i int) string {
	if f.foreign {
		return fmt.Sprintf("memory-backend-memfd,id=%s,size=%d,share=on", id, size)
	}
	return MemoryFile(id, size, f.path(ram[i]))
}

// inherited are the descriptors of one machine.
type inherited struct {
	ram      []*os.File // Machine.RAM
	initrd   *os.File
	channels []channel
	sandbox  bool // QEMU has one
}

// channel is QEMU's end of a socket to this process: a character device of QEMU's.
type channel struct {
	name string
	file *os.File
}

// The channels of a machine.
const (
	consoleChannel = "console"
	resultsChannel = "results"
	qmpChannel     = "qmp"
	portChannel    = "port" // of Config.ResultsPort
)

// behind are the arguments for what has a channel.
var behind = map[string][]string{
	consoleChannel: {"-serial", "chardev:console"},
	resultsChannel: {"-serial", "chardev:results"},
	qmpChannel:     {"-qmp", "chardev:qmp"},
	portChannel: {"-device", "virtio-serial-pci,id=ports",
		"-device", "virtserialport,chardev=port,name=" + agent.PortName},
}

// comma escapes a value for QEMU's option lists.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func fdPath(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }

// cpus is -smp. With one virtual CPU, and no place for a second, TCG takes the guest's locked
// instructions for plain loads and stores without a barrier: to a device in another process a
// driver's store of avail.idx and its load of avail_event then change places, and a kick is lost
// for good (measured: 36 stalls in 10 runs, none with a place for a second CPU).
func cpus(n int, accel Accel) string {
	if spareCPU(n, accel) {
		return "1,maxcpus=2"
	}
	return strconv.Itoa(n)
}

func spareCPU(n int, accel Accel) bool { return n == 1 && accel != AccelKVM }

// arguments builds QEMU's command line after the program, and the descriptors that it names. c has
// been checked and completed; accel is not AccelAuto.
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

// devices are the tree, GPUs, NICs and disks. Disks are last: whatever else there is stays where it is without them.
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
		case c.Tree != nil: // a place on PCI, for what the guest's node is: as much of it as a BAR can have
			bar := uint64(1) << (bits.Len64(g.Size) - 1)
			args = append(args, BARArgs("place-"+id, bar, f.path(g.File), c.on(g.Place))...)
		}
	}
	for i, n := range c.Netdevs {
		args = append(args, n.args("net"+strconv.Itoa(i), f, c.on(n.Place))...)
	}
	return append(args, c.disks(f)...)
}

// emulatedCPU is -cpu where QEMU emulates it.
func (c *Config) emulatedCPU() string {
	if c.ForwardsP2P {
		return "max,family=23" // Zen's
	}
	return "max"
}

// MachineArgs are the arguments for the machine, but for what it boots, under a QEMU that another program starts: with
// CPUs, RAM, Tree, GPUs, Disks, and Netdevs, which have a Path. QEMU opens the GPUs' memory and the disks' files by
// descriptors of this process, whose user may, and makes the RAM itself.
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

// Args are the arguments for a network device with a Path, under a QEMU that another program starts;
// id is in all its names.
func (n Netdev) Args(id string) []string { return n.args(id, nil, "") }

// args needs f for a device that is Connected. on is where on PCI it is: Config.on.
func (n *Netdev) args(id string, f *files, on string) []string {
	if n.VFIOUser {
		return []string{"-device", vfioUser(id, n, f, on)}
	}
	chardev := fmt.Sprintf("socket,id=%s,path=%s,", id, comma(cmp.Or(n.abstract, n.Path)))
	switch {
	case n.abstract != "":
		chardev += "abstract=on"
	case n.Listens:
		chardev += "server=on"
	default:
		chardev += "reconnect-ms=1000"
	}
	queues := cmp.Or(n.Queues, 1)
	return []string{"-chardev", chardev, "-netdev", fmt.Sprintf("vhost-user,id=%s,chardev=%s,queues=%d", id, id, queues),
		"-device", netDevice(id, queues, n, on)}
}

// memory is the machine and its memory: one piece, or NUMA nodes when GPUs are such.
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
	var sockets []string // of all nodes
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

// MemoryFile is -object for memory that is a file of ours: shared, so that QEMU hands it on to a
// backend.
func MemoryFile(id string, size uint64, path string) string {
	return fmt.Sprintf("memory-backend-file,id=%s,size=%d,mem-path=%s,share=on", id, size, comma(path))
}

// BARArgs are the arguments for GPU memory that is a BAR; options are more of the device's.
func BARArgs(id string, size uint64, path, options string) []string {
	return []string{"-object", MemoryFile(id, size, path),
		"-device", fmt.Sprintf("ivshmem-plain,id=dev-%s,memdev=%s%s", id, id, options)}
}

// guestOffloads keeps the driver from switching receive offloads off later (VIRTIO_NET_F_CTRL_GUEST_OFFLOADS): QEMU
// answers that command itself, and no message of vhost-user tells the backend, which would go on sending what the
// driver has said it does not take. Linux's does so when an XDP program is attached, and drops such packets then
// (drivers/net/virtio_net.c, mergeable_xdp_get_buf); without the feature it refuses the program (virtnet_xdp_set).
const guestOffloads = "ctrl_guest_offloads=off"

// noGuestOffloads are all features without which virtnet_xdp_set takes a program where guestOffloads are as they are.
const noGuestOffloads = "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_uso4=off," +
	"guest_uso6=off"

// netDevice is a virtio-net-pci, the modern one (1af4:1041) on any bus: two vectors for each queue
// pair, one for the control queue, one for changes of its configuration; no boot ROM.
func netDevice(id string, queues int, n *Netdev, on string) string {
	mq := "off"
	if queues > 1 {
		mq = "on"
	}
	s := fmt.Sprintf("virtio-net-pci,id=dev-%s,netdev=%s,disable-legacy=on,mq=%s,vectors=%d,"+
		"rx_queue_size=1024,tx_queue_size=1024,%s,romfile=", id, id, mq, 2*queues+2, guestOffloads) + on
	if n.MAC != nil {
		s += ",mac=" + n.MAC.String()
	}
	if n.MTU != 0 {
		s += ",host_mtu=" + strconv.Itoa(n.MTU)
	}
	if n.XDP {
		s += "," + noGuestOffloads
	}
	if n.Options != "" {
		s += "," + n.Options
	}
	return s
}

// vfioUser is a vfio-user-pci. Its socket has to be given in JSON, and of that QEMU takes the path
// alone (hw/vfio-user/pci.c, vfio_user_pci_realize): a name in the abstract namespace, or a
// descriptor, is not to be had.
func vfioUser(id string, n *Netdev, f *files, on string) string {
	path := n.Path
	if n.socket != nil {
		path = fdPath(f.add(n.socket))
	}
	device := map[string]any{"driver": "vfio-user-pci", "id": "dev-" + id,
		"socket": map[string]string{"type": "unix", "path": path}}
	if bus, there := strings.CutPrefix(on, ",bus="); there {
		device["bus"] = bus
	}
	if limits.Slow() > 1 {
		device["x-msg-timeout"] = limits.QEMUReply.Here().Milliseconds()
	}
	b, _ := json.Marshal(device) // never fails
	return string(b)
}

// complete fills in defaults and refuses what QEMU would refuse in worse words.
func (c *Config) complete() error {
	if len(c.QEMU.Args) == 0 {
		return fmt.Errorf("config: no QEMU: %w", assets.ErrNoQEMU)
	}
	if c.Kernel.Image == "" {
		return fmt.Errorf("config: no kernel: %w", assets.ErrNoKernel)
	}
	if c.Name == "" {
		c.Name = "guest"
	}
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
		if err := holds(g.File, g.Size); err != nil {
			return fmt.Errorf("config: GPU %d: %w", i, err)
		}
	}
	if err := c.checkTree(); err != nil {
		return err
	}
	if err := c.checkHotplug(); err != nil {
		return err
	}
	if err := c.checkDisks(); err != nil {
		return err
	}
	c.Netdevs = slices.Clone(c.Netdevs) // the caller's stays as it is
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

func holds(f *os.File, size uint64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if uint64(st.Size()) < size {
		return fmt.Errorf("file of %d bytes, %d needed", st.Size(), size)
	}
	return nil
}
