package redistest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const hashSlots = 16384

// A Cluster is a Redis Cluster.
type Cluster struct {
	// Masters have equal shares of the slots, the first has slot 0.
	Masters Servers
	// Replicas are in the order of their masters. The roles are those at the start.
	Replicas Servers

	t testing.TB
}

// StartCluster starts a Cluster of some masters with some replicas each. All slots
// are served, and the replicas in step, when it returns. A node that does not answer
// counts as failed after 2 s. The lines are added to the redis.conf of every node.
//
// It takes 2 s, as a master of a new Cluster waits that long.
func StartCluster(t testing.TB, masters, replicas int, lines ...string) *Cluster {
	t.Helper()
	lines = slices.Concat(inMemory, []string{"cluster-enabled yes", "cluster-node-timeout 2000"}, lines)
	c := &Cluster{t: t}
	for i := range masters * (1 + replicas) {
		node := newServer(t, lines)
		node.launch()
		if i < masters {
			c.Masters = append(c.Masters, node)
		} else {
			c.Replicas = append(c.Replicas, node)
		}
	}
	for _, node := range c.Nodes() {
		node.await()
	}
	for i, master := range c.Masters {
		add := []string{"CLUSTER", "ADDSLOTS"}
		for slot := range hashSlots {
			if slot*masters/hashSlots == i {
				add = append(add, strconv.Itoa(slot))
			}
		}
		master.must(add...)
	}
	// Every node meets every other: what nodes learn by gossip alone takes a second longer.
	for i, node := range c.Nodes() {
		node.must("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for i, node := range c.Nodes() {
		for _, other := range c.Nodes()[:i] {
			node.must("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
		}
	}
	for i, replica := range c.Replicas {
		id := c.Masters[i/replicas].must("CLUSTER", "MYID")
		wait(t, "CLUSTER REPLICATE", func() error {
			_, err := replica.Do("CLUSTER", "REPLICATE", fmt.Sprint(id)) // unknown until they have met
			return err
		})
	}
	c.WaitReady()
	return c
}

// Nodes returns all servers, masters first.
func (c *Cluster) Nodes() Servers { return slices.Concat(c.Masters, c.Replicas) }

// Owner returns the master of a key's slot, as the running nodes see it. It changes
// when a replica takes over.
func (c *Cluster) Owner(key string) *Server {
	c.t.Helper()
	for _, node := range c.Nodes().Running() {
		slot, err := node.Do("CLUSTER", "KEYSLOT", key)
		if err != nil {
			continue // paused
		}
		view, err := node.shards()
		if err != nil {
			continue
		}
		for _, shard := range view {
			if n, ok := slot.(int64); ok && shard.first <= n && n <= shard.last {
				return c.Nodes().At(shard.addrs[0])
			}
		}
	}
	c.t.Fatalf("redistest: no node serves the slot of %q", key)
	return nil
}

// WaitReady waits until all running nodes agree that all slots are served, and by which
// nodes, and until their replicas are in step. It is for use after
// [Server.Restart] and after a replica should have taken over.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	running := c.Nodes().Running()
	wait(c.t, "waiting for the cluster", func() error {
		var agreed string
		for _, node := range running {
			if err := node.clusterOK(running); err != nil {
				return fmt.Errorf("node %s: %w", node.Addr(), err)
			}
			view, err := node.shards()
			if err != nil {
				return err
			}
			switch s := fmt.Sprint(view); agreed {
			case "":
				agreed = s
			case s:
			default:
				return fmt.Errorf("one node sees %s, another %s", agreed, s)
			}
		}
		return nil
	})
}

// clusterOK returns why a node is not ready.
func (s *Server) clusterOK(running Servers) error {
	reply, err := s.Do("CLUSTER", "INFO")
	if err != nil {
		return err
	}
	info, _ := reply.(string)
	for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384"} {
		if !strings.Contains(info, want+"\r\n") {
			return fmt.Errorf("not %s", want)
		}
	}
	reply, err = s.Do("CLUSTER", "NODES")
	if err != nil {
		return err
	}
	// Lines like: ID 127.0.0.1:PORT@BUS[,HOST] FLAGS MASTER PING PONG EPOCH LINK SLOTS...
	nodes, _ := reply.(string)
	known := make(map[string]bool)
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			return errProtocol
		}
		addr, _, _ := strings.Cut(fields[1], "@")
		if strings.Contains(fields[2], "handshake") {
			return fmt.Errorf("it has not met %s", addr)
		}
		known[addr] = fields[7] == "connected" && !strings.Contains(fields[2], "fail")
	}
	for _, other := range running {
		if !known[other.Addr()] && other != s { // alone, it does not know its own address
			return fmt.Errorf("no link to %s", other.Addr())
		}
	}
	fields, err := s.info("replication")
	if err != nil {
		return err
	}
	return inStep(fields)
}

// inStep returns why a replica is not in step with its master, given its INFO.
func inStep(replication map[string]string) error {
	if replication["role"] == "slave" && replication["master_link_status"] != "up" {
		return fmt.Errorf("link to the master: %s", replication["master_link_status"])
	}
	return nil
}

// A shard is a range of slots and the nodes that serve it, the master first.
type shard struct {
	first, last int64
	addrs       []string
}

// shards returns what a node says about all slots.
func (s *Server) shards() ([]shard, error) {
	reply, err := s.Do("CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	var view []shard
	rows, _ := reply.([]any)
	for _, row := range rows {
		fields, _ := row.([]any)
		if len(fields) < 3 {
			return nil, errProtocol
		}
		var sh shard
		sh.first, _ = fields[0].(int64)
		sh.last, _ = fields[1].(int64)
		for _, node := range fields[2:] {
			n, _ := node.([]any)
			if len(n) < 2 {
				return nil, errProtocol
			}
			sh.addrs = append(sh.addrs, net.JoinHostPort(fmt.Sprint(n[0]), fmt.Sprint(n[1])))
		}
		slices.Sort(sh.addrs[1:])
		view = append(view, sh)
	}
	slices.SortFunc(view, func(a, b shard) int { return int(a.first - b.first) })
	return view, nil
}
