package transfer

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Complaints leaves out messages about out-of-tree modules, quarantined regions and memory failures.
func TestComplaints(t *testing.T) {
	got := complaints(`<4>[    1.2] vnicgpu: loading out-of-tree module taints kernel.
<4>[    2.0] vnicgpu 0000:01:00.0: region 1 is quarantined: the NIC has not answered within 1000 ms
<3>[    2.5] Memory failure: 0x5d21: recovery action for dirty LRU page: Recovered
<4>[    3.1] WARNING: mm/memremap.c:12 at memunmap_pages+0x1/0x2, CPU#0: irq/1
<6>[    3.2] Call Trace:
<1>[    4.0] BUG: Bad page state in process vnic-agent  pfn:1234
`)
	testkit.Equal(t, "complaints", len(got), 3)
	testkit.Equal(t, "the last", got[2], "<1>[    4.0] BUG: Bad page state in process vnic-agent  pfn:1234")
}
