package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

var tableRows = []struct{ name, title string }{
	{"ping", "a ping of the world"},
	{"TFTP", "TFTP: a server that answers from another port"},
	{"unreachable", "a closed port of UDP: ICMP's unreachable"},
	{"DF", "path MTU discovery by DF, a link of 1280"},
	{"silence", "a silent flow of UDP"},
	{"bursts", "bursts: 128 datagrams of 8 KiB to a forward and back"},
	{"search list", "the host's search list (DHCP option 119)"},
	{"reset", "a restart of the guest frees its 1,000 connections"},
	{"TCP rate", "TCP rate"},
	{"UDP rate", "UDP rate"},
	{"1,000 flows", "1,000 flows at once"},
	{"IPv6", "IPv6: TCP and a ping"},
}

// alone are checks of vnic's gateway only.
var alone = []struct{ name, title string }{
	{"ping refused", "A ping where the host allows no sockets for it (`net.ipv4.ping_group_range`)"},
	{"traceroute", "A traceroute"},
	{"UDP by IPv6", "UDP by IPv6"},
	{"DF again", "A datagram with DF that is longer than the path is known to take"},
}

func table(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	got := map[[2]string]row{}
	for d := json.NewDecoder(f); ; {
		var r row
		if err := d.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		got[[2]string{r.Name, r.Gateway}] = r
	}
	var failed []error
	cell := func(name string, g gateway) (row, string) {
		r, ok := got[[2]string{name, g.name}]
		switch {
		case !ok:
			failed = append(failed, fmt.Errorf("%s of %s is not measured", name, g.name))
		case r.Verdict != "":
			return r, r.Verdict + ": " + r.Text
		}
		return r, r.Text
	}
	fmt.Print("|")
	for _, g := range gateways {
		fmt.Printf(" | %s", g.name)
	}
	fmt.Println(" |\n|---|---|---|---|")
	for _, t := range tableRows {
		var cells []string
		var ranks []int
		for _, g := range gateways {
			r, c := cell(t.name, g)
			cells, ranks = append(cells, c), append(ranks, slices.Index(verdicts, r.Verdict))
		}
		fmt.Printf("| %s | %s |\n", t.title, strings.Join(cells, " | "))
		if min(ranks[1], ranks[2]) > ranks[0] {
			failed = append(failed, fmt.Errorf("%s: slirp and passt do better", t.name))
		}
	}
	fmt.Println()
	for _, t := range alone {
		r, c := cell(t.name, gateways[0])
		fmt.Printf("%s: %s.\n", t.title, c)
		if r.Verdict != "yes" {
			failed = append(failed, fmt.Errorf("%s: %s", t.name, c))
		}
	}
	return errors.Join(failed...)
}
