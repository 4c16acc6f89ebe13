// Package fleet knows who is where. It knows the sockets of a guard, the sockets of a key on all
// servers, the surplus, and who gives up a slot for whom. It knows nothing of connections: it asks
// the [Socket] to act.
//
// There is one membership lock, the roll's. To add a socket, to drain, to ban a key and to suspect
// a surplus are each one step under it. So no socket slips past a Shutdown or a CloseAll. While it
// is held, nothing of a Socket is called, and no other lock of the guard is taken. Whoever holds
// the lock of a connection may take it.
package fleet
