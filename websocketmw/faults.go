package websocketmw

import "github.com/headgate/headgate/internal/keywatch"

// newFaults returns what logs the faults of a valid Config.
func newFaults(c *Config) *keywatch.Watch {
	names := make([]string, len(c.Rules))
	for i := range c.Rules {
		names[i] = c.Rules[i].name()
	}
	return keywatch.New("websocketmw", c.Logger, names)
}
