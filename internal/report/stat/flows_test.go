package stat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// The JSON keys of flows are API.
func TestFlowsHaveTheseKeys(t *testing.T) {
	side := []FlowSide{{Port: "guest0", Queues: []int{1}, Rule: 2, Bound: []int{1}, Drops: map[string]uint64{"stopped": 1},
		First: time.Unix(0, 0).UTC(), Last: time.Unix(1, 0).UTC()}}
	b := testkit.Must(json.Marshal(&Flows{List: []Flow{{Proto: "tcp", From: "a:1", To: "b:2", TX: side, RX: side,
		State: "open"}}, Others: []Others{{}}, Hints: []string{"x"}}))(t)
	const one = `[{"port":"guest0","queues":[1],"rule":2,"bound":[1],"packets":0,"segments":0,"header_bytes":0,` +
		`"device_bytes":0,"gpu_file_bytes":0,"host_bytes":0,"bounced_bytes":0,"again_bytes":0,"drops":{"stopped":1},` +
		`"dropped_bytes":0,"first":"1970-01-01T00:00:00Z","last":"1970-01-01T00:00:01Z"}]`
	testkit.Equal(t, "JSON", string(b), `{"list":[{"proto":"tcp","from":"a:1","to":"b:2","tx":`+one+`,"rx":`+one+
		`,"state":"open"}],"others":[{"port":"","tx":false,"flows":0,"packets":0,"payload_bytes":0}],"hints":["x"]}`)
}

func TestBusiestQueueComesFirst(t *testing.T) {
	key := splitter.Flow{Proto: splitter.ProtoTCP, SrcPort: 1, DstPort: 2}
	p := portFlows{name: "guest0"}
	for queue, packets := range []uint64{5, 4, 6} {
		r := flows.Row{Flow: key}
		r.Packets = packets
		p.rows = append(p.rows, nic.QueueFlows{Queue: queue, Rows: []flows.Row{r}})
	}
	f := account([]portFlows{p}, nil, 0).List[0]
	testkit.Equal(t, "queues", fmt.Sprint(f.RX[0].Queues), "[2 0 1]")
	testkit.Equal(t, "packets", f.RX[0].Packets, 15)
}

func TestRuleThatMatchedLast(t *testing.T) {
	p := portFlows{name: "guest0"}
	for queue, r := range []flows.Row{{Rule: 0, Last: time.Unix(9, 0)}, {Rule: 1, Last: time.Unix(2, 0)},
		{Rule: 2, Last: time.Unix(3, 0)}, {Rule: 3, Last: time.Unix(1, 0)}} {
		r.Packets = uint64(10 - queue)
		p.rows = append(p.rows, nic.QueueFlows{Queue: queue, Rows: []flows.Row{r}})
	}
	testkit.Equal(t, "rule", account([]portFlows{p}, nil, 0).List[0].RX[0].Rule, 2)
}

func TestNamesOfFlows(t *testing.T) {
	four := [16]byte{10, 0, 0, 1}
	six := [16]byte{0xfd, 15: 1}
	for _, c := range []struct {
		flow splitter.Flow
		want string
	}{
		{splitter.Flow{}, "other  "},
		{splitter.Flow{Src: four, Dst: four, Proto: 6, SrcPort: 1, DstPort: 2}, "tcp 10.0.0.1:1 10.0.0.1:2"},
		{splitter.Flow{Src: six, Dst: six, Proto: 17, SrcPort: 1, DstPort: 2, IPv6: true}, "udp [fd00::1]:1 [fd00::1]:2"},
		{splitter.Flow{Src: four, Dst: four, Proto: 1}, "icmp 10.0.0.1 10.0.0.1"},
		{splitter.Flow{Src: four, Dst: four, Proto: 50, SrcPort: 7}, "ip 50 10.0.0.1 10.0.0.1"},
		{splitter.Flow{Src: four, Dst: four, Proto: 17}, "udp 10.0.0.1 10.0.0.1"},
	} {
		proto, from, to := names(&c.flow)
		testkit.Equal(t, "names", strings.Join([]string{proto, from, to}, " "), c.want)
	}
}
