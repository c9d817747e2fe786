package sabotage

import (
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

const (
	virtio = "virtio"
	gve    = "gve"
)

// Fault is one fault, with the tests that detect it.
type Fault struct {
	Name  string // one word, or two joined by a hyphen
	Class string
	What  string // what the NIC does wrong
	Only  string // only device model with the fault; "": both have it
	Every uint32 // default of nic.Sabotage.Every: one of so many occasions is hit
	Case  string // case of package nictest that fails with the fault
	// Kernel is the program and case of Linux's tools/testing/selftests/drivers/net that fails with the fault and
	// passes without it (test/40-sabotage.sh). If Kernel is "", there is none, and Why has the reason. On is the device
	// model whose NIC the case tests; "": both, or none.
	Kernel, On, Why string
	With            string // flags that `vnic selftest` needs for the case in Kernel; "": none
	// RunVirtio and RunGVE are the outcomes of `vnic run --nic virtio` and `--nic gve` with the
	// fault.
	RunVirtio, RunGVE Outcome

	install func(*nic.Sabotage)
}

// Outcome is the outcome of a `vnic run` with a fault.
type Outcome uint8

// Outcomes.
const (
	Passes Outcome = iota // the run does not detect the fault
	Fails
	Missing // there is no run: the model does not have the fault
	Crawls  // the run goes on, but too slowly to wait for its end
)

func (o Outcome) String() string { return [...]string{"passes", "fails", "-", "crawls"}[o] }

// faults are in the order of Table: the faults of one class stand together.
var faults = []Fault{
	{
		Name: "payload-place", Class: "payload place", Every: 1,
		What: "TCP and UDP payload is rotated by one byte, with the last byte first; its checksum is marked as good",
		Case: "SplitSweep", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: hasPayload, after: misplace}),
	},
	{
		Name: "header-place", Class: "header place", Every: 1,
		What: "the header buffer of a split frame has 2 bytes of the payload behind the headers",
		Case: "SplitSweep", Kernel: "hw/devmem.py:check_rx_hds", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: splits, before: splitLate}),
	},
	{
		Name: "hash", Class: "hash", Every: 1,
		What: "RSS hashes are computed with a key rotated by one byte",
		Case: "HashPlacesFlows", Kernel: "hw/toeplitz.py:test.tcp_ipv4", On: gve,
		install: turnKey,
	},
	{
		Name: "checksum-in", Class: "checksum in", Every: 1,
		What: "TCP and UDP checksums that the NIC should verify are marked as good without a check",
		Case: "BadChecksumJoinsNoMerge", Kernel: "hw/csum.py:ipv4_rx_tcp_invalid",
		install: onReceive(damage{fits: unverified, before: vouch}),
	},
	{
		Name: "checksum-out", Class: "checksum out", Every: 1,
		What: "partial checksums are not completed, except in GSO packets",
		Case: "ChecksumsLeaveComplete", Kernel: "hw/csum.py:ipv4_tx_udp_csum_offload", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: skipSums,
	},
	{
		Name: "rule", Class: "rule", Every: 1,
		What: "the frames of a flow rule go to the queue after the rule's",
		Case: "RuleBeatsRSS", Kernel: "hw/ntuple.py:queue.tcp4.dst_port", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: shiftRules,
	},
	{
		Name: "rss-table", Class: "RSS table", Every: 1,
		What: "every second entry of an RSS table with several entries counts as the next queue",
		Case: "RSSExcludes", Kernel: "hw/toeplitz.py:test.rss_tcp_ipv4", On: gve,
		install: shiftTable,
	},
	{
		Name: "order", Class: "generation or order", Every: 1,
		What: "two successive frames of a flow in one batch are swapped",
		Case: "MergesKeepOrder", Why: "a test would need two frames in one batch, and TCP restores the order",
		install: swapFrames,
	},
	{
		Name: "generation", Class: "generation or order", Only: gve, Every: 40, RunVirtio: Missing, RunGVE: Fails,
		What: "a receive completion keeps the generation of the previous lap: its driver waits there for ever",
		Case: "DriverIsCalled", Kernel: "ping.py:test_default_v4", On: gve,
		install: ring(nic.RingGeneration),
	},
	{
		Name: "completion", Class: "missing completion", Every: 1,
		What: "a transmitted frame is not completed",
		Case: "FramesComeBack", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: dropCompletions,
	},
	{
		Name: "end", Class: "EOP", Every: 1,
		What: "a frame in several buffers ends with the first one: gve's end-of-packet bit, virtio's num_buffers",
		Case: "ShortageIsWholeFrames", Kernel: "ping.py:test_xdp_generic_mb", On: gve, With: "--mtu 9000",
		RunVirtio: Fails, RunGVE: Crawls,
		install: ring(nic.RingEnd),
	},
	{
		Name: "length", Class: "length", Every: 1,
		What: "a TCP or UDP frame arrives with 4 more bytes, as if its frame check sequence belonged to it",
		Case: "SplitSweep", Kernel: "gro.py:test.sw_ipv4_data_same", On: gve,
		install: onReceive(damage{fits: fitsLonger, before: lengthen}),
	},
	{
		Name: "cut", Class: "cut", Every: 1,
		What: "a TCP or UDP frame arrives without its last 4 bytes, as if its frame check sequence were removed twice",
		Case: "SplitSweep", Kernel: "hw/csum.py:ipv4_rx_udp",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: hasPayload, before: shorten}),
	},
	{
		Name: "segmentation", Class: "segmentation", Every: 1,
		What: "the payloads of the first two segments of a GSO packet are swapped",
		Case: "SegmentsForWhoLacksTSO", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: mixSegments,
	},
	{
		Name: "stats", Class: "stats", Every: 1,
		What: "each frame counts with one byte too much of payload in host memory",
		Case: "Meters", Why: "the kernel's tests read the drivers' counters, not the NIC's",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: anyFrame, after: miscount}),
	},
	{
		Name: "interrupt", Class: "interrupt", Every: 2,
		What: "a driver gets no interrupt for received frames",
		Case: "DriverIsCalled", Kernel: "ping.py:test_default_v4", On: gve,
		RunVirtio: Fails, RunGVE: Crawls,
		install: dropCalls,
	},
	{
		Name: "after-destroy", Class: "use after destroy", Every: 1,
		What:    "a stopped receive queue writes each of its frames to the last buffer that it had",
		Case:    "StoppedQueueIsLeftAlone",
		Why:     "the kernel owns the buffer again, and no test checks its content; a kernel that checks free pages may notice",
		install: writeAfterStop,
	},
}

func anyFrame(f *nic.Frame) bool { return f.PayloadLen > 0 && f.Meta.Headers.Class == splitter.TCP }

func ring(f nic.RingFault) func(*nic.Sabotage) { return func(s *nic.Sabotage) { s.Ring = f } }
