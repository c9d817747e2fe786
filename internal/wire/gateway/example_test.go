package gateway_test

import (
	"fmt"
	"log"
	"log/slog"
	"net/netip"

	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

// The gateway serves guests at a switch. One of them has a name, and a forward leads from the host to its TCP port 80.
func Example() {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	defer sw.Close()
	g, err := gateway.New(sw, gateway.Options{
		MAC:     wire.MAC{0x02, 0x76, 0x6e, 0x69, 0x00, 0xfe},
		Prefix4: netip.MustParsePrefix("10.118.110.254/24"),
		Hosts: []gateway.Host{
			{Name: "guest0", MAC: wire.MAC{0x02, 0x76, 0x6e, 0x69, 0, 1}, Addr4: netip.MustParseAddr("10.118.110.1")},
		},
		Forwards: []gateway.Forward{
			{Proto: "tcp", Listen: netip.MustParseAddrPort("127.0.0.1:0"), To: netip.MustParseAddrPort("10.118.110.1:80")},
		},
		NAT: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	fmt.Println(g.Addr4(), g.Forwards()[0].Listen.Port() != 0)
	// Output: 10.118.110.254/24 true
}
