package nethttp

import "github.com/headgate/headgate/internal/old/keywatch"

// newFaults returns what logs the faults of a valid Config.
func newFaults(c *Config, what string) *keywatch.Watch {
	names := make([]string, len(c.Rules))
	for i := range c.Rules {
		names[i], _ = c.Rules[i].name()
	}
	return keywatch.New(what, c.Logger, names, c.Observe != nil)
}
