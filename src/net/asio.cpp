// The bodies of Asio and Beast, which every other file only declares (BOOST_ASIO_SEPARATE_COMPILATION): saves a fifth of the compile time.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
