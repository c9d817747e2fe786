package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/limit"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire/uplink"
)

// Options are the flags of `vnic run`.
type Options struct {
	lab.Impairment // of the link, in each direction; its Seed is the payload's, too

	NIC        string // NICVirtio or NICGVE; or the sender's and the receiver's, with a comma between
	BindQueues int    // receive queues that are bound to GPU memory in mode devmem
	HoldTokens uint64 // tokens that the receiver keeps until nothing comes any more, in each round of mode devmem
	Size       uint64 // bytes to transfer, in each mode
	Modes      []string
	MTU        int
	MaxMTU     int  // to which guests can raise theirs; 0: MTU
	XDP        bool // virtio NICs take native XDP programs
	RSCUsecs   int  // lab.NIC's, of all NICs
	Family     int  // 4 or 6
	Memory     uint64
	GPUMemory  uint64
	GPUDriver  string // lab.DriverNode or lab.DriverVNICGPU; a Lab has its own
	IOMMU      bool   // guests' kernels translate what NICs address; of a Lab its file may say so, too
	P2P        bool
	Audit      bool
	// Lab, if it is not nil, has the guests; Rails is how many of their NICs are used, each with that of the same number
	// of the other guest, in both directions with Bidir. 0: one transfer, without a lab.
	Lab   *labfile.Lab
	Rails int
	Bidir bool
	// Half is the guest of the lab that is here; the other one is on another host, to which Uplinks lead. "": both are
	// here, and Uplinks are Services. Keeper is uplink.Options.Keep; PeerSecs is how many seconds the other host has to
	// come.
	Half     string
	Uplinks  []uplink.Config
	Keeper   func(path string, dir bool) (remove func() error, err error)
	PeerSecs int
	// Scale is how many times slower than they say the lab's links are, or auto; "": as the lab file has it. Where it is
	// said, shares of links are measured, and with MustShare a rail without one is an error.
	Scale     string
	MustShare bool
	Digest    string // DigestPieces or DigestSHA256
	Sabotage  string // a fault that NICs are made with, for sabotage.Parse; "": none
	InProc    bool
	Keep      bool   // keep the guests' consoles and the NICs' counters
	KeepDir   string // where; "" = a directory named for the seed, here
	Pause     string // stop for ever at this stage (tests)
	StallSecs int    // without progress, until a transfer fails

	Accel qemu.Accel // how QEMU runs guests
	Fetch assets.Options
	Log   *slog.Logger

	Stage    func(Step)                            // a stage begins
	Progress func(mode string, done, total uint64) // during a transfer; from one goroutine at a time
	Note     func(format string, args ...any)      // what a user should know

	Services []lab.Service // what else is to see the lab: counters, a capture

	Recorder *Recorder // for a picture; nil: none

	// Confine takes rights from this process when all guests are there, and none has been let in; Broker
	// then does for it what it may not any more. Both or neither may be nil.
	Confine func() error
	Broker  *broker.Client

	Timeout time.Duration // ends all, with a *limit.Error; 0: never
	alive   *limit.Guests // what the guests do

	hook     func(*runner) // tests: the runner, before its guests boot
	railHook func(*rails)
}

// BrokerConfig is what a broker is to do for this command: to end QEMUs; there is no gateway.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	return broker.Config{Mode: mode, Monitor: qemu.Commands}, nil
}

// Defaults are the options of `vnic run` without a flag, but for a seed.
func Defaults() Options {
	return Options{NIC: NICVirtio, BindQueues: 1, Size: 256 << 20, Modes: []string{transfer.Devmem, transfer.Copy},
		MTU: 1500, Family: 4, Memory: 512 << 20, GPUMemory: 512 << 20, P2P: true,
		StallSecs: int(limits.Stall / limits.Limit(time.Second)),
		PeerSecs:  int(limits.Host / limits.Limit(time.Second)), Digest: DigestPieces}
}

// Step is a stage as it begins. The last four stages come once for each round of each mode.
type Step = guests.Step

// Stages are in order: what a user sees, and where an interruption is tested.
var Stages = []string{"fetch", "gpu-memory", "boot", "setup", "prepare", "connect", "transfer", "verify"}

const (
	page      = 4096
	poolShare = 8 // the page pool of the receiver is this part of GPU memory
	minPool   = 4 << 20
	maxPool   = 64 << 20
	leastRoom = minPool * poolShare // that a transfer needs of a GPU
	basePort  = 5201
	maxBind   = 15 // a NIC has 16 queue pairs at most
	maxHold   = 1 << 32
	holdTime  = 3 // seconds without data until tokens that are held are given back
)

// plan is how a size is cut into rounds.
type plan struct {
	pool   uint64 // bytes of the receiver's GPU memory, from 0, that its pages come from
	rounds []uint64
}

func (o *Options) plan() (p plan, err error) {
	if o.Size == 0 {
		return p, errors.New("--size 0: nothing to transfer")
	}
	models, err := o.models()
	if err != nil {
		return p, err
	}
	send, recv := guests.Usable(models[0], o.GPUMemory), guests.Usable(models[1], o.GPUMemory)
	if recv < leastRoom {
		least := uint64(leastRoom)
		if models[1].Node { // a power of two
			least *= 2
		}
		return p, fmt.Errorf("--gpu-memory %s is too small: %d MiB at least", lab.FormatBytes(o.GPUMemory), least>>20)
	}
	return o.cut(send, recv)
}

// cut plans with so much GPU memory of sender and receiver.
func (o *Options) cut(send, recv uint64) (p plan, err error) {
	p.pool = min(recv/poolShare, maxPool) / page * page
	room := min(send, recv-p.pool) / page * page
	if o.Size/room >= maxRounds {
		return p, fmt.Errorf("--size: more than %d rounds of what fits GPU memory: a larger --gpu-memory makes fewer",
			maxRounds)
	}
	for left := o.Size; left > 0; {
		n := min(left, room)
		p.rounds = append(p.rounds, n)
		left -= n
	}
	return p, nil
}

// window is what a guest takes of a node: as much as the largest round needs.
func (p *plan) window() uint64 {
	return (p.pool + up(slices.Max(p.rounds)) + guests.HugePage - 1) &^ (guests.HugePage - 1)
}

// maxRounds keeps the plan small; it is a TiB with the smallest GPU.
const maxRounds = 1 << 15

// Check says what is wrong with the options.
func (o *Options) Check() error {
	for _, m := range o.Modes {
		if m != "devmem" && m != "copy" {
			return fmt.Errorf("--mode %s: devmem, copy or both", m)
		}
	}
	models, err := o.models()
	if err != nil {
		return err
	}
	for _, m := range models {
		if m.VFIOUser && o.MTU > m.MaxMTU {
			return fmt.Errorf("--mtu %d: at most %d with --nic %s", o.MTU, m.MaxMTU, m.Name)
		}
		n := lab.NIC{MTU: o.MTU, MaxMTU: o.MaxMTU}
		if !n.MTUs(&m) {
			return fmt.Errorf("--max-mtu %d: %d (--mtu) to %d with --nic %s", o.MaxMTU, o.MTU, m.MaxMTU, m.Name)
		}
		if m.VFIOUser && o.XDP {
			return fmt.Errorf("--xdp and --nic %s: %s", m.Name, lab.WhyNoXDP)
		}
	}
	if err := o.checkSabotage(models[:]); err != nil {
		return err
	}
	switch {
	case o.XDP && o.InProc:
		return errors.New("--xdp and --guest inproc: XDP programs are of a guest's kernel, and there is none")
	case o.MaxMTU != 0 && o.InProc:
		return errors.New("--max-mtu and --guest inproc: no kernel is there to raise an MTU")
	case o.BindQueues < 1 || o.BindQueues > maxBind:
		return fmt.Errorf("--bind-queues %d: 1 to %d", o.BindQueues, maxBind)
	case o.HoldTokens > maxHold:
		return fmt.Errorf("--hold-tokens %d: at most %d", o.HoldTokens, uint64(maxHold))
	case len(o.Modes) == 0:
		return errors.New("--mode: devmem, copy or both")
	case o.Family != 4 && o.Family != 6:
		return fmt.Errorf("--family %d: 4 or 6", o.Family)
	case o.RSCUsecs < 0 || o.RSCUsecs > lab.MaxRSCUsecs:
		return fmt.Errorf("--rsc-usecs %d: microseconds, 0 to %d", o.RSCUsecs, lab.MaxRSCUsecs)
	case o.MTU < 576 || o.MTU > 65535-14 || o.Family == 6 && o.MTU < 1280:
		return fmt.Errorf("--mtu %d: 576 (IPv6: 1280) to %d", o.MTU, 65535-14)
	case lab.CheckLink(&o.Impairment) != nil:
		return fmt.Errorf("--%w", lab.CheckLink(&o.Impairment))
	case o.GPUMemory&(o.GPUMemory-1) != 0:
		return fmt.Errorf("--gpu-memory %s: not a power of two, as a PCI BAR must be", lab.FormatBytes(o.GPUMemory))
	case o.Memory < lab.MinRAM || o.Memory%(2<<20) != 0:
		return fmt.Errorf("--memory %s: at least 192M, in steps of 2M", lab.FormatBytes(o.Memory))
	case limit.Check(o.Timeout) != nil:
		return limit.Check(o.Timeout)
	case o.Fetch.Modules != "" && o.Fetch.Kernel == "":
		return errors.New("--modules without --kernel: give the kernel that they belong to")
	case o.Digest != DigestPieces && o.Digest != DigestSHA256:
		return fmt.Errorf("--digest %s: %s or %s", o.Digest, DigestPieces, DigestSHA256)
	case o.StallSecs < 1:
		return fmt.Errorf("--stall %d: at least 1 second", o.StallSecs)
	case o.Pause != "" && !slices.Contains(Stages, o.Pause):
		return fmt.Errorf("--pause-at %s: none of %s", o.Pause, strings.Join(Stages, ", "))
	}
	if err := o.checkIOMMU(); err != nil {
		return err
	}
	if err := errors.Join(o.checkHalf(), o.checkScale()); err != nil {
		return err
	}
	if err := o.checkRails(); err != nil || o.Rails > 0 {
		return err
	}
	for _, m := range models {
		if pairs := guests.UsedPairs(m.Name, o.queuePairs(m)); pairs <= o.BindQueues {
			return fmt.Errorf("--bind-queues %d: guests use %d pairs of queues of a NIC of model %s, and ordinary traffic "+
				"wants one: %d at most", o.BindQueues, pairs, m.Name, pairs-1)
		}
	}
	_, err = o.plan()
	return err
}

// checkIOMMU sees whether the guests can have IOMMUs; of a Lab its own check says so.
func (o *Options) checkIOMMU() error {
	if !o.IOMMU || o.Lab != nil {
		return nil
	}
	d, err := o.description()
	if err != nil {
		return err
	}
	return d.Check()
}

// loss says where segments are lost. What is between hosts may do so.
func (o *Options) loss() transfer.Loss {
	switch {
	case o.Half != "", o.Lossy(), o.Lab.MayLose():
		return transfer.LinkLoss
	case o.HoldTokens > 0:
		return transfer.PoolLoss
	}
	return transfer.NoLoss
}

// patience is how long anything may take that shows no progress.
func (o *Options) patience() time.Duration {
	return limits.Stall.Unless(time.Duration(o.StallSecs) * time.Second)
}

func (o *Options) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(format, args...)
	}
}

// stage begins a stage. It returns an error when the run has been interrupted.
func (o *Options) stage(ctx context.Context, s Step) error {
	o.alive.Stage(s.Stage)
	if o.Stage != nil {
		o.Stage(s)
	}
	if o.Pause == s.Stage {
		<-ctx.Done()
	}
	return context.Cause(ctx)
}

func up(n uint64) uint64 { return (n + page - 1) / page * page }
