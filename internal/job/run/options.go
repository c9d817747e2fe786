package run

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire/uplink"
)

// Options are the flags of `vnic run`.
type Options struct {
	session.Common
	lab.Impairment // of the link, in each direction; its Seed is the payload's, too
	lab.NICOptions // of all NICs

	NIC        string // NICVirtio or NICGVE; or the sender's and the receiver's, with a comma between
	BindQueues int    // receive queues that are bound to GPU memory in mode devmem
	HoldTokens uint64 // tokens that the receiver keeps until nothing comes any more, in each round of mode devmem
	Size       uint64 // bytes to transfer, in each mode
	Modes      []string
	Family     int // 4 or 6
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
	Keep      bool   // keep the guests' consoles and the NICs' counters
	KeepDir   string // where; "" = a directory named for the seed, here
	StallSecs int    // without progress, until a transfer fails

	Progress func(mode string, done, total uint64) // during a transfer; from one goroutine at a time

	Recorder *Recorder // for a picture; nil: none

	hook   func(*runner) // tests: before the guests boot
	opened func(*runner) // and when they have taken their NICs
}

// BrokerConfig is what a broker is to do for this command: to end QEMUs; there is no gateway.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	return broker.Config{Mode: mode, Monitor: qemu.Commands}, nil
}

// Defaults are the options of `vnic run` without a flag, but for a seed.
func Defaults() Options {
	return Options{NIC: NICVirtio, BindQueues: 1, Size: 256 << 20, Modes: []string{transfer.Devmem, transfer.Copy},
		NICOptions: lab.NICOptions{MTU: 1500}, Family: 4, Memory: 512 << 20, GPUMemory: 512 << 20, P2P: true,
		StallSecs: int(limits.Stall / limits.Limit(time.Second)),
		PeerSecs:  int(limits.Host / limits.Limit(time.Second)), Digest: DigestPieces}
}

// Step is a stage as it begins. The last four stages come once for each round of each mode.
type Step = session.Step

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

// Check says what is wrong with the options.
func (o *Options) Check() error {
	if err := session.Modes(o.Modes); err != nil {
		return err
	}
	if _, err := o.models(); err != nil {
		return err
	}
	switch {
	case o.XDP && o.InProc:
		return errors.New("--xdp and --guest inproc: XDP programs are of a guest's kernel, and there is none")
	case o.MaxMTU != 0 && o.InProc:
		return errors.New("--max-mtu and --guest inproc: no kernel is there to raise an MTU")
	case o.HoldTokens > maxHold:
		return fmt.Errorf("--hold-tokens %d: at most %d", o.HoldTokens, uint64(maxHold))
	case o.StallSecs < 1:
		return fmt.Errorf("--stall %d: at least 1 second", o.StallSecs)
	case o.Pause != "" && !slices.Contains(Stages, o.Pause):
		return fmt.Errorf("--pause-at %s: none of %s", o.Pause, strings.Join(Stages, ", "))
	}
	return cmp.Or(session.Number("--bind-queues", o.BindQueues, 1, maxBind),
		session.OneOf("--digest", o.Digest, DigestPieces, DigestSHA256), session.Family(o.Family, o.MTU),
		new(lab.Guest).CheckMachine(o.Memory, 1), o.Common.Check(),
		errors.Join(o.checkHalf(), o.checkScale()), o.checkLab())
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

func up(n uint64) uint64 { return (n + page - 1) / page * page }
