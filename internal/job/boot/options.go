package boot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/machine/assets/toolimage"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
)

// Options are the flags of `vnic boot`, with the streams and functions that it uses; NewImage takes them, too.
type Options struct {
	session.Common
	lab.NICOptions // for all NICs, MaxMTU and XDP only if the kernel drives it; with Lab only for NICs that kernelNIC adds
	// Lab is the lab file that describes the guests (Take); nil: the options below describe them.
	Lab *labfile.Lab

	NIC       string // lab.Virtio or lab.GVE; unused with Lab
	Guests    int
	CPUs      int
	Memory    uint64
	GPUMemory uint64
	GPUDriver string         // lab.DriverNode or lab.DriverVNICGPU; unused with Lab
	IOMMU     bool           // guests have an IOMMU, by which kernels translate NICs' addresses; unused with Lab
	Flows     int            // lab.Options.Flows
	Impair    lab.Impairment // impairment of all links; unused with Lab

	AllowMAC lab.AllowedMACs
	Storm    uint // lab.Options.Storm
	lab.GatewayFlags

	Copies   []string // HOST:GUEST, or HOST for the same absolute path
	Env      []string // NAME=VALUE, or NAME for its value in this process's environment
	Tools    string   // Debian packages and names of groups of them, or none (toolimage.Parse)
	Append   string   // added to the kernel's command line
	QEMUArgs []string
	GDB      int    // TCP port at 127.0.0.1 for gdb on the first guest; the others' follow; 0: none
	LogDir   string // directory for the guests' console output; "": not kept

	Command []string // empty: a shell

	End string // EndAll or EndFirstFailure; "": EndAll

	Booted         func(accel qemu.Accel) // when all guests have booted, with the first one's accelerator; may be nil
	Doing          func(what string)      // called with the current step; "": the programs run; may be nil
	Stdin          *os.File
	Stdout, Stderr io.Writer

	image bool // set by NewImage
}

// MaxGuests is the largest number of guests.
const MaxGuests = lab.MaxGPUs

// Take sets Lab and the options that the lab file decides: also Gateway, if the file has one. It returns an error if a
// guest has a name that vnic boot may use for something else (ownName), or if there are too many guests.
func (o *Options) Take(l *labfile.Lab) error {
	o.Lab, o.NIC, o.Guests, o.GPUMemory = l, "", len(l.Guests), 0
	o.Memory, o.CPUs = l.Machines[0].RAM, l.Machines[0].CPUs
	if l.Gateway != "" {
		o.Gateway = l.Gateway
	}
	if len(l.Guests) > MaxGuests {
		return fmt.Errorf("--lab: %d guests: %d at most", len(l.Guests), MaxGuests)
	}
	for i, g := range l.Guests {
		o.Memory = min(o.Memory, l.Machines[i].RAM) // the smallest guest's
		if ownName(g.Name, i) {
			return fmt.Errorf("--lab: a guest cannot be called %s: that is a name of vnic boot's, for another", g.Name)
		}
		for _, m := range g.GPUs {
			o.GPUMemory = max(o.GPUMemory, m.Memory)
		}
	}
	return nil
}

// ownName reports whether name, for guest i, is gateway, localhost, or like a name of another guest or of devmem
// programs.
func ownName(name string, i int) bool {
	return lab.HasName(name) || strings.HasSuffix(name, "-devmem") ||
		name != guestnet.HostName(i) && guestNumber.MatchString(name)
}

var guestNumber = regexp.MustCompile("^" + guestnet.GuestName + "[0-9]+$")

// Check returns an error for wrong options.
func (o *Options) Check() error {
	err := cmp.Or(session.Number("--guests", o.Guests, 1, MaxGuests),
		session.OneOf("--end", cmp.Or(o.End, EndAll), EndAll, EndFirstFailure))
	switch {
	case err != nil:
		return err
	case o.Guests > 1 && len(o.Command) == 0 && o.Lab != nil:
		return fmt.Errorf("--lab: a shell is for one guest, and there are %d: name a command, after --", o.Guests)
	case o.Guests > 1 && len(o.Command) == 0:
		return errors.New("--guests: a shell is for one guest: name a command, after --")
	case o.GDB < 0 || o.GDB > 65535-o.Guests:
		return fmt.Errorf("--gdb %d: no port, or too high for that of the last guest", o.GDB)
	}
	for _, e := range o.Env {
		if name, _, _ := strings.Cut(e, "="); name == "" {
			return fmt.Errorf("--env %q: NAME=VALUE, or NAME for its value here", e)
		}
	}
	if _, err := toolimage.Parse(o.Tools); err != nil {
		return err
	}
	d := o.describe()
	_, err = o.gateway()
	return errors.Join(new(lab.Guest).CheckMachine(o.Memory, o.CPUs), o.Common.Check(), d.Check(), err)
}

func (o *Options) models() (list []string) {
	for _, g := range o.describe().Guests {
		for _, n := range g.NICs {
			list = append(list, n.Model)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// kernelModels lists the models on which devmem programs use the kernel's driver.
func (o *Options) kernelModels() []string {
	return slices.DeleteFunc(o.models(), func(m string) bool { return !kernels(m) })
}

func kernels(model string) bool {
	m, _ := lab.LookupModel(model)
	return m.Kernel
}

// ownNIC reports whether guest i gets one more NIC for its kernel, because devmem programs drive its first
// one.
func (o *Options) ownNIC(i int) bool {
	if o.Lab != nil {
		return !kernels(o.Lab.Guests[i].NICs[0].Model)
	}
	return !kernels(o.NIC)
}

// gpuPort returns the guest's first NIC that the kernel drives and that reaches a GPU; nil: none.
func (p *place) gpuPort() *lab.Port {
	for _, port := range p.devmem {
		if port.Model.Kernel && port.GPU() != nil {
			return port
		}
	}
	return nil
}
