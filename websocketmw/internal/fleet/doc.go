// Package fleet knows who is where: the sockets of a guard, those of a key on all servers, which of
// them are too many, and who gives up a slot for whom. It knows nothing of connections: what is to
// happen to a socket, it asks the [Socket] for.
//
// There is one membership lock, the roll's. To add a socket, to drain, to ban a key and to suspect a
// surplus are each one step under it, so that no socket slips past a Shutdown or a CloseAll. Under it
// nothing of a Socket is called, and no other lock of the guard is taken; whoever holds the lock of a
// connection may take it.
package fleet
