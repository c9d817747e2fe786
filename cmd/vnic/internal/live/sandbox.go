package live

import (
	"fmt"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
)

// confined starts the process outside of the sandbox, and gives what closes the sandbox, which leaves
// this process more calls, too. Where it cannot be had that is an error if the user has asked for it,
// else a line.
func confined(configure func(mode string) (broker.Config, error), mode string, asked bool, note func(string, ...any),
	more broker.Calls) (*broker.Client, func() error, error) {
	if mode == broker.Off {
		return nil, nil, nil
	}
	config, err := configure(mode)
	if err != nil {
		return nil, nil, err
	}
	b, err := broker.Start(config)
	if err != nil && !asked {
		note("%v: there is no sandbox", err)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: see 'vnic doctor', or give --sandbox off", err)
	}
	return b, func() error {
		warning, err := b.Confine(mode, more)
		if err != nil && asked {
			return fmt.Errorf("--sandbox %s: %w: see 'vnic doctor', or give --sandbox off", mode, err)
		}
		if err != nil {
			warning = fmt.Sprintf("there is none: %v", err)
		}
		if warning != "" {
			note("sandbox: %s", warning)
		}
		return nil
	}, nil
}
